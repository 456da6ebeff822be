# SPDX-License-Identifier: MIT
# fetch.sh - kernels and libcs out of the distribution's packages, into a cache. Sourced by run.
#
# Nothing is installed. Each suite and architecture has an apt state of its own, on the mirror that
# this machine's own sources name. What cannot be had leaves its reason in $why and returns 1.
# What the index has in a higher version is fetched anew where $refresh is set (never under
# PERCPU_OFFLINE); if that fails, the old one stays in use. PERCPU_FETCH_UNTIL: a time (date +%s)
# after which nothing is fetched.
# shellcheck shell=bash

cache=${PERCPU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/percpu}
why=
refresh=
declare -A checked have_index no_index # once is enough

# mirror SUITE - where SUITE is. PERCPU_MIRROR and PERCPU_MIRROR_SECURITY say otherwise.
mirror() {
    local uris kind=debian given=${PERCPU_MIRROR-}
    uris=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | sort -u)
    case $1 in *-security) kind=debian-security given=${PERCPU_MIRROR_SECURITY-} ;; esac
    printf '%s\n' "${given:-$(grep "/$kind/*\$" <<<"$uris" | head -n 1)}"
}

# private_apt SUITE ARCH TOOL ARG... - apt-get or apt-cache on that suite's own state
private_apt() {
    local suite=$1 arch=$2 tool=$3 dir=$cache/apt/$1.$2 limit=
    shift 3
    [ "$tool" != apt-get ] || limit=in_time
    $limit "$tool" -qq -o Dir::State="$dir" -o Dir::State::status="$dir/status" \
        -o Dir::Cache="$dir/cache" -o Dir::Etc::sourcelist="$dir/sources.list" \
        -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
        -o APT::Architecture="$arch" -o APT::Architectures::="$arch" \
        -o Acquire::Languages=none -o Acquire::Retries=1 -o Acquire::http::Timeout=20 \
        -o APT::Sandbox::User= -o Acquire::Check-Valid-Until=false "$@"
}

# in_time COMMAND... - unless it is too late, or gets too late
in_time() {
    local left=3600
    if [ -n "${PERCPU_FETCH_UNTIL-}" ]; then
        left=$((PERCPU_FETCH_UNTIL - $(date +%s)))
        [ $left -gt 0 ] || { echo 'E: no time left to fetch it'; return 1; }
    fi
    timeout $left "$@"
}

# index SUITE ARCH - make sure that its index is here, and no older than a day
index() {
    local suite=$1 arch=$2 dir=$cache/apt/$1.$2 uri
    local keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    if [ -e "$dir/ok" ] && { [ -n "${PERCPU_OFFLINE-}${have_index[$suite.$arch]-}" ] \
        || [ -n "$(find "$dir/ok" -mtime -1)" ]; }; then
        return 0
    fi
    why=${no_index[$suite.$arch]-}
    [ -z "$why" ] || return 1
    command -v apt-get >/dev/null || { why="no apt-get on this machine"; return 1; }
    uri=$(mirror "$suite")
    [ -n "$uri" ] || { why="apt's sources name no mirror that has $suite"; return 1; }
    mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
    : >>"$dir/status"
    echo "deb [arch=$arch signed-by=$keyring] $uri $suite main" >"$dir/sources.list"
    if private_apt "$suite" "$arch" apt-get update >"$dir/log" 2>&1 \
        && ls "$dir"/lists/*_Packages* >/dev/null 2>&1; then
        : >"$dir/ok"
    elif [ ! -e "$dir/ok" ]; then
        why="no index of $suite for $arch: $(grep -m 1 '^[EW]:' "$dir/log" | cut -c 1-100)"
        no_index[$suite.$arch]=$why
        return 1
    fi
    have_index[$suite.$arch]=yes # yesterday's will do
}

# newest SUITE ARCH REGEX - the package of that name with the highest version
newest() {
    private_apt "$1" "$2" apt-cache pkgnames 2>/dev/null | grep -E "^($3)\$" | sort -V | tail -n 1
}

# outdated FILE SUITE ARCH REGEX - is FILE's first line, a package file's name, older than the
# index's?
outdated() {
    local have name version
    [ -n "$refresh" ] && [ -z "${PERCPU_OFFLINE-}${checked[$1]-}" ] && index "$2" "$3" || return 1
    checked[$1]=yes
    have=$(head -n 1 "$1")
    name=$(newest "$2" "$3" "$4")
    version=$(private_apt "$2" "$3" apt-cache show --no-all-versions "$name" 2>/dev/null \
        | sed -n 's/^Version: //p')
    [ -n "$version" ] || return 1
    have=${have%_*} name=${name}_${version//:/%3a}
    [ "$have" != "$name" ] \
        && [ "$(printf '%s\n' "$have" "$name" | sort -V | tail -n 1)" = "$name" ]
}

# package SUITE ARCH REGEX - download; the file's name in $deb
package() {
    local suite=$1 arch=$2 name dir=$cache/debs/$BASHPID
    index "$suite" "$arch" || return 1
    name=$(newest "$suite" "$arch" "$3")
    [ -n "$name" ] || { why="$suite has no package $3 for $arch"; return 1; }
    rm -rf "$dir"
    mkdir -p "$dir"
    if (cd "$dir" && private_apt "$suite" "$arch" apt-get download "$name:$arch" >log 2>&1); then
        deb=$(echo "$dir"/*.deb)
        [ -e "$deb" ] && return 0
    fi
    why="$name cannot be downloaded: $(tail -n 1 "$dir/log" | cut -c 1-100)"
    rm -rf "$dir"
    return 1
}

# fetch_kernel SUITE ARCH REGEX - the bare kernel; its path in $kernel
fetch_kernel() {
    local key=$cache/kernels/$1.$2.$(printf %s "$3" | tr -c 'A-Za-z0-9\n' _)
    kernel=$key/kernel
    if [ ! -e "$kernel" ]; then
        get_kernel "$key" "$@"
    elif outdated "$key/package" "$1" "$2" "$3"; then
        get_kernel "$key" "$@" || echo "the cached $(cat "$key/package") stays in use: $why" >&2
        [ -e "$kernel" ]
    fi
}

# get_kernel KEY SUITE ARCH REGEX - download it into KEY
get_kernel() {
    local key=$1 new=$1.new.$BASHPID deb
    package "$2" "$3" "$4" || return 1
    rm -rf "$new"
    mkdir -p "$new"
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$new" --wildcards --transform 's,.*/,,' \
        './boot/vmlinu[xz]-*' './usr/lib/modules/*/vmlinuz' 2>/dev/null
    find "$new" -type f -size +1M | head -n 1 | while read -r file; do
        mv "$file" "$new/kernel"
    done
    rm -rf "$(dirname "$deb")"
    basename "$deb" >"$new/package"
    if [ ! -e "$new/kernel" ] || ! unwrap "$new/kernel"; then
        why="no kernel inside $(basename "$deb")"
        rm -rf "$new"
        return 1
    fi
    rm -rf "$key"
    mv "$new" "$key"
}

# unwrap FILE - an EFI zboot wrapper (magic "zimg" at 4) to the kernel that is inside it
unwrap() {
    local at size kind
    [ "$(dd if="$1" bs=1 skip=4 count=4 2>/dev/null | tr -d "\0")" = zimg ] || return 0
    at=$(od -A n -t u4 -j 8 -N 4 "$1" | tr -d ' ')
    size=$(od -A n -t u4 -j 12 -N 4 "$1" | tr -d ' ')
    kind=$(dd if="$1" bs=1 skip=24 count=4 2>/dev/null | tr -d '\0')
    case $kind in gzip) kind=gzip ;; zstd) kind=zstd ;; xz*) kind=xz ;; *) return 1 ;; esac
    tail -c +"$((at + 1))" "$1" | head -c "$size" | "$kind" -dc >"$1.inside" 2>/dev/null
    [ -s "$1.inside" ] && mv "$1.inside" "$1"
}

# fetch_tree NAME SUITE ARCH REGEX... - packages unpacked into $cache/libc/NAME; the path in $tree
fetch_tree() {
    tree=$cache/libc/$1
    if [ ! -e "$tree/ok" ]; then
        get_tree "$@"
    elif outdated "$tree/packages" "$2" "$3" "$4"; then
        get_tree "$@" || echo "the cached $(head -n 1 "$tree/packages") stays in use: $why" >&2
        [ -e "$tree/ok" ]
    fi
}

# get_tree NAME SUITE ARCH REGEX... - download them, and what was there goes
get_tree() {
    local tree=$cache/libc/$1 new=$cache/libc/$1.new.$BASHPID suite=$2 arch=$3 regex deb
    shift 3
    mkdir -p "$new"
    for regex in "$@"; do
        if ! package "$suite" "$arch" "$regex"; then
            rm -rf "$new"
            return 1
        fi
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$new" --exclude=./usr/share --exclude='*/gconv'
        basename "$deb" >>"$new/packages"
        rm -rf "$(dirname "$deb")"
    done
    # Links to absolute paths would lead out of the tree.
    find "$new" -type l -lname '/*' | while read -r link; do
        ln -sfn "$tree$(readlink "$link")" "$link"
    done
    : >"$new/ok"
    rm -rf "$tree"
    mv "$new" "$tree"
}

# fetch_files DIR SUITE ARCH REGEX FILE... - those files of a package, into DIR
fetch_files() {
    local dir=$1 suite=$2 arch=$3 regex=$4 deb
    shift 4
    package "$suite" "$arch" "$regex" || return 1
    mkdir -p "$dir"
    if ! dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$dir" "$@"; then
        why="$(basename "$deb") cannot be unpacked"
        return 1
    fi
    rm -rf "$(dirname "$deb")"
    : >"$dir/ok"
}
