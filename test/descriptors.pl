#!/usr/bin/env perl
# SPDX-License-Identifier: MIT
# descriptors.pl [-g] [-p PREFIX] FILE - verify the critical sections of a linked program or shared
# object, by what the kernel will see: the descriptors after relocation, and the instructions that
# they speak of. PREFIX: of readelf and objdump, such as aarch64-linux-gnu-. Prints a line of
# numbers and exits with 0, or a line per fault and exits with 1; 2: the file has no sections; 3:
# the tools are missing.
# -g: linked with --gc-sections, by which some linkers drop __rseq_cs_ptr_array.
#
# Stores. A section's only store to what others see is its last instruction, to its row:
# (p,%rcx) or (%rcx) on x86-64, [x10] on aarch64, 0(t1) on riscv64. Two sections write
# elsewhere before it, where nobody looks until they commit, and only these forms are taken for
# that:
#   the link of a node being pushed    %rdx -> (node,next)   x11 -> [node, next]    t2 -> 0(t3)
#   the idle one of a gauge's buffers  8(%r10), 16(%r10)     [x11, #8], [x11, #16]  8(t2), 16(t2)
# i386: the row is (%edx) or (%edi); %eax -> (node,next); 4 to 16(out); a time may go to the stack.
# arm: the row is [lr]; r3 -> [node, next]; [r3, #8] to [r3, #20].
# mips64: as riscv64, registers of the same names.
# loongarch64: $t5, 0; $t6 -> $t7, 0; $t6, 8 and $t6, 16.
use strict;
use warnings;
no warnings "portable"; # addresses have 64 bits

my ($prefix, $collected) = ("", 0);
if (@ARGV > 1 && $ARGV[0] eq "-g") { shift; $collected = 1 }
if (@ARGV > 1 && $ARGV[0] eq "-p") { shift; $prefix = shift }
die "usage: descriptors.pl [-p PREFIX] FILE\n" unless @ARGV == 1;
my $file = $ARGV[0];

sub tool {
    open my $h, "-|", $prefix . shift, @_ or exit 3;
    my @lines = <$h>;
    close $h or exit 3;
    return @lines;
}

my ($machine, $big, @sections);
for (tool("readelf", "-hSW", $file)) {
    $machine = $1 if /^\s*Machine:\s*(.*\S)/;
    $big = 1 if /^\s*Data:.*big endian/;
    push @sections, {name => $1, type => $2, at => hex $3, off => hex $4, size => hex $5}
        if /^\s*\[\s*\d+\]\s+(\S+)\s+(\S+)\s+([0-9a-f]+)\s+([0-9a-f]+)\s+([0-9a-f]+)/;
}
my %arch = (
    "Advanced Micro Devices X86-64" => "x86_64",
    "AArch64" => "aarch64",
    "RISC-V" => "riscv64",
    "Intel 80386" => "i386",
    "ARM" => "arm",
    "LoongArch" => "loongarch64",
    "MIPS R3000" => "mips64",
);
my $arch = $arch{$machine} or do { print "no sections for $machine\n"; exit 2 };
my ($cs) = grep { $_->{name} eq "__rseq_cs" } @sections;
my ($pointers) = grep { $_->{name} eq "__rseq_cs_ptr_array" } @sections;
exit 2 unless $cs;

my @faults;
sub fault { push @faults, sprintf shift, @_ }

# ---- Memory as the program will see it: the file's bytes, with relocations applied
open my $in, "<:raw", $file or die "$file: $!\n";
my $image = do { local $/; <$in> };
close $in;

sub bytes {
    my ($at, $n) = @_;
    for (@sections) {
        next if !$_->{at} || $_->{type} eq "NOBITS";
        next if $at < $_->{at} || $at + $n > $_->{at} + $_->{size};
        return substr $image, $_->{off} + $at - $_->{at}, $n;
    }
    return "\0" x $n;
}

my %relocated;
for (tool("readelf", "-rW", $file)) {
    next unless /^([0-9a-f]{16})\s+[0-9a-f]{16}\s+(\S+)\s+(.*)/;
    my ($at, $type, $rest) = (hex $1, $2, $3);
    $relocated{$at} = hex $1 if $type =~ /_RELATIV/ && $rest =~ /^([0-9a-f]+)$/;
    $relocated{$at} = hex($1) + hex($2 // 0)
        if $type =~ /^R_(X86_64_64|AARCH64_ABS64|RISCV_64|LARCH_64)$/
        && $rest =~ /^([0-9a-f]{16})\s+\S+(?:\s\+\s([0-9a-f]+))?/;
}

sub word64 { my $at = shift; return $relocated{$at} // unpack $big ? "Q>" : "Q<", bytes($at, 8) }
sub word32 { return unpack $big ? "N" : "V", bytes(shift, 4) }

# ---- The instructions around the sections
my @sites;
fault "size of __rseq_cs is %d, not a multiple of 64", $cs->{size} if $cs->{size} % 64;
for (my $at = $cs->{at}; $at + 64 <= $cs->{at} + $cs->{size}; $at += 64) {
    my $start = word64($at + 8);
    push @sites, {at => $at, version => word32($at), flags => word32($at + 4), start => $start,
        post => $start + word64($at + 16), abort => word64($at + 24), restart => word64($at + 32),
        slow => word64($at + 40)};
}
my ($low) = sort { $a <=> $b } map { $_->{restart} } @sites;
my ($high) = sort { $b <=> $a } map { $_->{post} } @sites;
my (%insn, %next, $last);
for (tool("objdump", "-d", "-w", "--no-show-raw-insn", sprintf("--start-address=0x%x", $low),
        sprintf("--stop-address=0x%x", $high + 16), $file)) {
    next unless /^\s*([0-9a-f]+):\s+(.*\S)/;
    my ($at, $text) = (hex $1, $2);
    $insn{$at} = $text;
    $next{$last} = $at if defined $last;
    $last = $at;
}

my %signature = (x86_64 => 0x53053053, aarch64 => 0xd428bc00, riscv64 => 0xf1401073,
    i386 => 0x53053053, arm => 0xe7f5def3, loongarch64 => 0x002a0010, mips64 => 0x0350000d);
my %forbidden = (
    x86_64 => qr/^(notrack\s+)?(call|ret|syscall|sysenter|int|int3|hlt|jmp|push|pop|xchg|cmpxchg|
        rep\w*|lock|movs[bwlq]|stos|lods|scas|cmps|ud)\b/x,
    aarch64 => qr/^(bl|blr|b(?!\.)|br|ret|svc|brk|hvc|stp|ld\w*xr\w*|st\w*xr\w*|swp\w*|cas\w*|
        ldadd\w*|dc|ic)\b/x,
    i386 => qr/^(notrack\s+)?(call|ret|sysenter|int|int3|hlt|jmp|push|pop|xchg|cmpxchg|rep\w*|
        lock(?!\s+orl\s+\$0x0,\(%esp\)$)|movs[bwl]|stos|lods|scas|cmps|ud)\b/x,
    arm => qr/^(bl|blx|bx|b(\.[nw])?|push|pop|ldm\w*|stm\w*|svc|udf|bkpt|ld[ra]e\w*|st[rl]e\w*|
        strd|it\w*)\s/x,
    loongarch64 => qr/^(bl?|jirl|jr|ret|syscall|break|ll\.\w+|sc\.\w+|am\w+)\s/,
    mips64 => qr/^(b|bal|j|jr|jal|jalr|syscall|break|teq|lld?|scd?|[sl][dw][lr])\s/,
    riscv64 => qr/^(jal|jalr|call|tail|ret|jr|ecall|ebreak|lr\.\w+|sc\.\w+|amo\w+)\b/,
);
# What reads its memory operand only.
my $reads_x86 = qr/^(cmp|test|lea|lfence|nop|j)/;

sub memory_stored {    # the operand that an instruction writes to, if that is memory
    my $text = shift;
    $text =~ s/\s+<.*|\s+\/\/.*//;
    $text =~ s/\s+#.*// unless $arch =~ /^a/; # there it is an immediate
    $text =~ s/\s+@.*//;
    return $text =~ /(\[.*\])/ ? $1 : undef if $arch eq "arm" && $text =~ /^st/;
    if ($arch =~ /86/) {
        return if $text =~ $reads_x86;
        return $1 if $text =~ /(?:^\S+\s+|,)((?:%fs:)?-?(?:0x[0-9a-f]+)?\([^)]*\))$/;
        return $1 if $text =~ /,(%[fg]s:\S+|0x[0-9a-f]+)$/;
        return;
    }
    return $text =~ /(\[.*\])/ ? $1 : undef if $arch eq "aarch64" && $text =~ /^(st|stl)\w*\s/;
    return $text =~ /,(-?\d*\(\w+\))$/ ? $1 : undef
        if $arch =~ /riscv|mips/ && $text =~ /^s[bhwd]\s/;
    return $text =~ /,\s*(\$\w+, -?\w+)\s*$/ ? $1 : undef
        if $arch eq "loongarch64" && $text =~ /^stx?(ptr)?\./;
    return;
}

sub is_row {
    my $to = shift;
    # With a scale of 8: a word of a set, %rcx being the row.
    return $to =~ /^(?:0x0)?\((%r\w+,%rcx(,1)?|%rcx,%r\w+(,[18])?|%rcx)\)$/ if $arch eq "x86_64";
    return $to =~ /^(?:0x0)?\(%ed[xi]\)$|^-?0x[0-9a-f]+\(%e[sb]p\)$|^\(%esp\)$/ if $arch eq "i386";
    return $to eq "[lr]" if $arch eq "arm";
    return $to eq "[x10]" if $arch eq "aarch64";
    return $to eq "\$t5, 0" if $arch eq "loongarch64";
    return $to eq "0(t1)";
}

sub is_private {
    my ($text, $to) = @_;
    if ($arch eq "x86_64") {
        return 1 if $to =~ /^0x(8|10)\(%r10\)$/;
        return $text =~ /^mov\s+%rdx,/ && $to =~ /^(?:0x0)?\((%r\w+),(%r\w+)(,1)?\)$/
            && $1 ne "%rcx" && $2 ne "%rcx";
    }
    if ($arch eq "i386") {
        my $moves = $text =~ /^mov\s+%e[ad]x,/;
        return 1 if $moves && $to =~ /^-?(0x[0-9a-f]+)?\(%e(\w\w)\)$/ && $2 =~ /^[sb]p$/;
        return 1 if $moves && $to =~ /^0x(4|8|c|10)\(%e(\w\w)\)$/ && $2 !~ /^(ax|cx|dx|di)$/;
        return 1 if $text =~ /^lock orl/;
        return $text =~ /^mov\s+%eax,/ && $to =~ /^(?:0x0)?\((%e\w\w),(%e\w\w)(,1)?\)$/
            && $1 ne "%edx" && $2 ne "%edx";
    }
    if ($arch eq "arm") {
        return 1 if $to =~ /^\[r3, #(8|12|16|20)\]$/;
        return $text =~ /^str(\.w)?\s+r3,/ && $to =~ /^\[(\w+), (\w+)\]$/
            && $1 ne "lr" && $2 ne "lr";
    }
    if ($arch eq "aarch64") {
        return 1 if $to =~ /^\[x11, #(8|16)\]$/;
        return $text =~ /^str\s+x11,/ && $to =~ /^\[x(\d+), x(\d+)\]$/ && $1 != 10 && $2 != 10;
    }
    if ($arch eq "loongarch64") {
        return $to =~ /^\$t6, (8|16)$/ || ($text =~ /^st\.d\s+\$t6,/ && $to eq "\$t7, 0");
    }
    return $to =~ /^(8|16)\(t2\)$/ || ($text =~ /^sd\s+t2,/ && $to eq "0(t3)");
}

# The instructions from restart to start: load the descriptor's address, store it in rseq_cs.
sub check_arming {
    my ($s, $where, @i) = @_;
    my $all = join "; ", map { $insn{$_} } @i;
    my $good;
    if ($arch eq "x86_64") {
        $good = @i == 2 && $all =~ /^lea\s+\S+,%r11\s+# ([0-9a-f]+).*; mov\s+%r11,%fs:/;
    } elsif ($arch eq "aarch64") {
        $good = @i == 3 && $all =~ /^(?:nop|adrp\s+x9,.*);\s
            (?:add\s+x9,\sx9|adr\s+x9|nop).*;\s stu?r\s+x9,\s\[x\d+,\s\#4\]$/x;
    } elsif ($arch eq "i386") {
        $good = $all =~ /^mov\s+\S+,%eax;\s (?:mov\s+\$0x([0-9a-f]+)|
            mov\s+\S+,%ecx;\s lea\s+-?0x[0-9a-f]+\(%ecx\),%ecx;\s sub\s+\$0x[0-9a-f]+),%ecx;\s
            mov\s+%ecx,0x4\(%eax\)$/x;
        fault "%s: loads the address 0x%x", $where, hex $1
            if $good && defined $1 && hex $1 != $s->{at};
    } elsif ($arch eq "arm") {
        $good = $all =~ /^movw\s+ip,\s\#(\d+).*;\s movt\s+ip,\s\#(\d+).*;\s
            add\s+ip,\s(?:ip,\s)?pc.*;\s str(\.w)?\s+ip,\s\[\w+,\s\#4\]$/x;
        # two of 4 bytes in ARM, 2 and 4 in Thumb
        my $pc = $i[2] + ($s->{start} - $i[2] == 8 ? 8 : 4);
        fault "%s: loads the address 0x%x", $where, ($2 << 16 | $1) + $pc & 0xffffffff
            if $good && (($2 << 16 | $1) + $pc & 0xffffffff) != $s->{at};
    } elsif ($arch eq "loongarch64") {
        $good = $all =~ /^pca(ddi|lau12i)\s+\$t4,\s(-?\d+)[^;]*;\s
            (?:addi\.d\s+\$t4,\s\$t4,\s(-?\d+)[^;]*;\s)?st\.d\s+\$t4,\s\$\w+,\s4$/x;
        my $to = !$good ? 0 : $1 eq "ddi" ? $i[0] + 4 * $2
               : (($i[0] & ~0xfff) + ($2 << 12)) + ($3 // 0);
        fault "%s: loads the address 0x%x", $where, $to if $good && $to != $s->{at};
    } elsif ($arch eq "mips64") { # a word between says how far away it is
        $good = @i == 6 && $all =~ /^bal\s[^;]*;\s nop;\s [^;]*;\s lw\s+t0,0\(ra\);\s
            daddu\s+t0,t0,ra;\s sd\s+t0,4\(\w+\)$/x;
        my $to = $good ? $i[2] + unpack "l", pack "L", word32($i[2]) : 0;
        fault "%s: loads the address 0x%x", $where, $to if $good && $to != $s->{at};
    } else {
        $good = $all =~ /^(?:auipc\s+t0,\w+;\s)?(?:add|mv|addi)\s+t0,.*;\s
            sd\s+t0,4\(\w+\)(?:\s+\#.*)?$/x;
    }
    fault "%s: not armed as expected: %s", $where, $all unless $good;
    # The address that they load, where the disassembler computes it.
    my $loaded = $all =~ /^lea.*?# ([0-9a-f]+)/ || $all =~ /^auipc.*?# ([0-9a-f]+)/ ? hex $1
               : $all =~ /adrp\s+x9, ([0-9a-f]+).*?add\s+x9, x9, #0x([0-9a-f]+)/
               ? hex($1) + hex($2) : undef;
    fault "%s: loads the address 0x%x", $where, $loaded
        if defined $loaded && $loaded != $s->{at};
}

# A gauge's buffer: a barrier before it is written to, since it was the live one; and its stores
# before the commit. (What the models in test/models say of these instructions.)
my %barrier = (
    aarch64 => qr/^dmb\s+ish(st)?\b/, riscv64 => qr/^fence\s+(w|rw),(w|rw)\b/,
    arm => qr/^dmb\s/, loongarch64 => qr/^dbar\b/,
);
my %buffer = (
    aarch64 => qr/^\[x11, #(8|16)\]$/, riscv64 => qr/^(8|16)\(t2\)$/,
    arm => qr/^\[r3, #(8|12|16|20)\]$/, loongarch64 => qr/^\$t6, (8|16)$/,
);
sub check_order {
    my ($s, $where, @in) = @_;
    my $barrier = $barrier{$arch} or return;
    my ($buffer) = grep { (memory_stored($insn{$in[$_]}) // '') =~ $buffer{$arch} } 0 .. $#in;
    return unless defined $buffer;
    fault "%s: no barrier before the idle buffer is written", $where
        unless grep { $insn{$in[$_]} =~ $barrier } 0 .. $buffer - 1;
    fault "%s: the commit does not release the buffer: %s", $where, $insn{$in[-1]}
        unless $insn{$in[-1]} =~ /^stlr\b/ || $insn{$in[-2]} =~ $barrier;
}

my ($commits, $private, $instructions) = (0, 0, 0);
for my $s (@sites) {
    my $where = sprintf "descriptor 0x%x (section 0x%x)", $s->{at}, $s->{start};
    fault "%s: not 32-aligned", $where if $s->{at} % 32;
    fault "%s: version %d, flags %d", $where, $s->{version}, $s->{flags}
        if $s->{version} || $s->{flags};
    fault "%s: empty", $where if $s->{post} <= $s->{start};
    fault "%s: abort address inside", $where
        if $s->{abort} >= $s->{start} && $s->{abort} < $s->{post};
    fault "%s: slow path inside", $where
        if $s->{slow} >= $s->{restart} && $s->{slow} < $s->{post};
    fault "%s: signature is 0x%x", $where, word32($s->{abort} - 4)
        if word32($s->{abort} - 4) != $signature{$arch};
    fault "%s: the signature is not inside an undefined instruction", $where
        if $arch =~ /86/ && bytes($s->{abort} - 7, 3) ne "\x0f\xb9\x3d";

    my (@arm, @in);
    for (my $at = $s->{restart}; $at < $s->{start}; $at = $next{$at}) {
        push @arm, $at;
        last if @arm > 8 || !$next{$at};
    }
    fault "%s: start is not after the arming instructions", $where
        unless @arm && ($next{$arm[-1]} // 0) == $s->{start};
    check_arming($s, $where, grep { defined $insn{$_} } @arm);
    for (my $at = $s->{start}; $at < $s->{post}; $at = $next{$at}) {
        push @in, $at;
        last if @in > 40 || !$next{$at};
    }
    if (!@in || ($next{$in[-1]} // 0) != $s->{post} || grep { !defined $insn{$_} } @in) {
        fault "%s: does not end between two instructions", $where;
        next;
    }
    $instructions += @in;
    my ($stores, $early) = (0, 0);
    for my $at (@in) {
        my $text = $insn{$at};
        my $exit = ($arch eq "riscv64" && $text =~ /^j\s+([0-9a-f]+)/ && $1 !~ /^0*$/
            || $arch eq "loongarch64" && $text =~ /^b\s.*# ([0-9a-f]+)/)
            && (hex($1) < $s->{restart} || hex($1) >= $s->{post})
            || $arch eq "mips64" && $text eq "jr\tt2" && $insn{$at - 4} eq "ld\tt2,40(t0)";
        fault "%s: 0x%x: %s", $where, $at, $text if $text =~ $forbidden{$arch} && !$exit;
        if ($text =~ /^(?:j\w+|b\.\w+|cbn?z|tbn?z|b[\w.]+)\s.*?\b([0-9a-f]{3,})\b(?: <|$)/) {
            my $to = hex $1;
            fault "%s: 0x%x jumps back: %s", $where, $at, $text
                if $to >= $s->{restart} && $to <= $at;
        }
        my $to = memory_stored($text);
        next unless defined $to;
        if ($at == $in[-1]) {
            $stores++;
            fault "%s: 0x%x: the commit is not to the row: %s", $where, $at, $text
                unless is_row($to);
        } elsif (is_private($text, $to)) {
            $early++;
        } else {
            fault "%s: 0x%x: stores before the last instruction: %s", $where, $at, $text;
        }
    }
    fault "%s: private stores, but no commit", $where if $early && !$stores;
    check_order($s, $where, @in);
    $commits += $stores;
    $private += $early;
}

my %entry = map { $_->{at} => 0 } @sites;
if (!$pointers) {
    fault "no __rseq_cs_ptr_array" unless $collected;
} else {
    for (my $at = $pointers->{at}; $at < $pointers->{at} + $pointers->{size}; $at += 8) {
        my $to = word64($at);
        if (exists $entry{$to}) {
            $entry{$to}++;
        } else {
            fault "__rseq_cs_ptr_array: 0x%x is no descriptor", $to;
        }
    }
}
for (grep { $entry{$_} != 1 && $pointers } sort keys %entry) {
    fault "descriptor 0x%x has %d pointers", $_, $entry{$_};
}

if (@faults) {
    print "$_\n" for @faults;
    exit 1;
}
printf "%d sections, %d instructions, %d commits, %d private stores\n", scalar @sites,
    $instructions, $commits, $private;
