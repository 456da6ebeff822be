#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# readme.pl PLATFORMS - the README's table of platforms, from the results that `make check-kernels`
#   keeps
# readme.pl --check PLATFORMS README - is that what stands in the README between the lines
#   <!-- platforms -->  and  <!-- /platforms -->  ? Exit 1 if not.
# readme.pl --update PLATFORMS README - put it there
use strict;
use warnings;

my $mode = @ARGV && $ARGV[0] =~ /^--(check|update)$/ ? (shift, $1)[1] : 'print';
die "usage: readme.pl [--check|--update] PLATFORMS [README]\n"
    unless @ARGV == ($mode eq 'print' ? 1 : 2);
my ($results, $readme) = @ARGV;

sub text { open my $in, '<', $_[0] or die "$_[0]: $!\n"; local $/; return scalar <$in> }

# 5.10 after 5.9
sub by_version
{
    my @a = split /\./, $a;
    my @b = split /\./, $b;
    return $a[0] <=> $b[0] || ($a[1] // 0) <=> ($b[1] // 0) || ($a[2] // 0) <=> ($b[2] // 0);
}
sub list { return join ', ', sort by_version keys %{$_[0] // {}} }

my (@names, %arch, @order);
for (split /\n/, text($results)) {
    next unless /^\|/ && !/^\|---/;
    my @cells = map { s/^\s+|\s+$//gr } split /\|/;
    shift @cells;
    if (!@names) { @names = @cells; next }
    my %r;
    @r{@names} = @cells;
    my $a = $arch{$r{arch}} //= do { push @order, $r{arch}; {} };
    $a->{aborts} += $r{aborts} =~ /^\d+$/ ? $r{aborts} : 0;
    $a->{failed} += $r{failed};
    if ($r{operations} =~ /^not run/) { $a->{not_run}{$r{operations}}++; next }
    # made to fall back, or to fail
    next if $r{libc} =~ /\.(enosys|open)\b/ || $r{operations} eq '?';
    my ($kernel) = $r{kernel} =~ /^(\d+\.\d+)/;
    if ($r{operations} =~ /^sections/) {
        $a->{sections}{$kernel} = 1;
    } elsif ($r{operations} =~ /kernel-broken/) {
        $a->{broken}{$kernel =~ /^7\.0/ ? $r{kernel} =~ s/[-+].*//r : $kernel} = 1;
    } else {
        $a->{fallback}{$kernel} = 1;
        $a->{id} = 1 if $r{'id from'} eq 'area';
    }
    my ($family, $version) = $r{libc} =~ /^(glibc|musl)-.*\((\d+\.\d+)/
        ? ($1, $2) : $r{libc} =~ /^(glibc|musl)-(\d[\d.]*\d)/;
    $a->{$family}{$version} = 1 if $version;
}
die "$results: no table\n" unless @order;

my $table = "| | operations | kernels booted | glibc | musl | aborts |\n"
    . "|---|---|---|---|---|---|\n";
for my $name (@order) {
    my $a = $arch{$name};
    my $operations = $a->{sections} ? 'sections'
        : $a->{id} ? 'atomics, id from the area'
        : $a->{fallback} ? 'atomics' : 'not run';
    $operations .= "; refused on " . list($a->{broken}) . ", broken there" if $a->{broken};
    $operations .= " ($a->{failed} FAILED)" if $a->{failed};
    my %kernels = (%{$a->{sections} // {}}, %{$a->{fallback} // {}});
    $table .= sprintf "| %s | %s | %s | %s | %s | %s |\n", $name, $operations,
        list(\%kernels) || '-', list($a->{glibc}) || '-', list($a->{musl}) || '-', $a->{aborts};
}

if ($mode eq 'print') { print $table; exit 0 }
my $page = text($readme);
die "$readme: no lines <!-- platforms --> and <!-- /platforms -->\n"
    unless $page =~ /^<!-- platforms -->\n(.*?)^<!-- \/platforms -->$/ms;
my $found = $1;
exit 0 if $found eq $table;
if ($mode eq 'check') {
    print "$readme: the table of platforms is not that of $results; ",
        "test/kernels/readme.pl --update $results $readme\n";
    exit 1;
}
$page =~ s/^(<!-- platforms -->\n).*?^(<!-- \/platforms -->)$/$1$table$2/ms;
open my $out, '>', $readme or die "$readme: $!\n";
print $out $page;
close $out or die "$readme: $!\n";
