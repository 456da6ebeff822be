#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# table.pl ROWS LOGS - the table of what ran where, from the boots' logs; exit 1 on any failure
# table.pl --count LOG - one line about one boot
# table.pl --tap ROWS LOGS - a TAP result per boot and libc
use strict;
use warnings;

my @reasons = qw(- no-kernel blocked libc-disabled other-owner kernel-broken not-ported exiting
    id-range not-maintained disabled unregistered no-static-tls no-exit-hook);

# A log: what each variant did, and what each program said.
sub parse {
    my ($file) = @_;
    my %boot = (kernel => '-', variants => {}, order => [], troubles => [], skips => []);
    my ($name, $v, $spoke, $finished, %here);
    my $variant = sub {
        my ($n) = @_;
        push @{$boot{order}}, $n unless $boot{variants}{$n};
        return $boot{variants}{$n} //= {passed => 0, failed => 0, skipped => 0, aborts => 0};
    };
    open my $in, '<', $file or return undef;
    while (<$in>) {
        s/[\r\n]+$//;
        s/^\x1b\[[0-9;?]*[a-zA-Z]//g;
        if (/^\@\@skip (.*)/) {
            $boot{skip} = $1;
        } elsif (/\@\@init (\S+) (\S+)/) {
            ($spoke, $boot{kernel}) = (1, $1);
        } elsif (/^\@\@done/) {
            $finished = 1;
        } elsif (/^\@\@missing ([^\/ ]+)(?:\/(\S+))? (.*)/) {
            my $m = $variant->($1);
            $m->{skipped}++;
            push @{$boot{skips}}, "$1" . (defined $2 ? "/$2" : '') . ": $3";
        } elsif (/^\@\@broken ([^\/ ]+)\/(\S+) (.*)/) {
            $variant->($1)->{failed}++;
            push @{$boot{troubles}}, "$1/$2: does not build: $3";
            $boot{broken} = 1;
        } elsif (/\@\@begin (\S+)/) {
            $name = $1;
            %here = (failed => 0, results => 0);
            $v = $variant->($name =~ m{^([^/]+)/} ? $1 : $name) unless $name =~ m{^(setup|libc)/};
        } elsif (/^\@\@end (\S+) (\d+)/ && defined $name) {
            if ($name =~ m{^(setup|libc)/}) {
                push @{$boot{troubles}}, "$name: refused" if $2;
                $boot{setup_failed}++ if $2;
            } elsif ($2 != 0 && $2 != 77 && !$here{failed}) {
                $v->{failed}++;
                my $end = $2 == 124 ? 'did not end in time' : "exit status $2";
                push @{$boot{troubles}}, "$name: $end";
            } elsif ($2 == 0 && !$here{results} && $name !~ /selftest$/) {
                $v->{failed}++;
                push @{$boot{troubles}}, "$name: no results";
            } elsif ($name =~ /selftest$/) {
                $2 ? $v->{failed}++ : $v->{passed}++;
            }
            undef $name;
        } elsif (defined $name && defined $v) {
            if (/^ok\b.*# *skip *(.*)/i || /^1\.\.0 *# *skip *(.*)/i) {
                $v->{skipped}++;
                $here{results}++;
                push @{$boot{skips}}, "$name: $1";
            } elsif (/^ok\b/) {
                $v->{passed}++;
                $here{results}++;
            } elsif (/^not ok\b(.*)/) {
                $v->{failed}++;
                $here{failed}++;
                push @{$boot{troubles}}, "$name:$1";
            } elsif (/^# platform: (.*)/) {
                my %p = map { split /=/, $_, 2 } grep { /=/ } split ' ', $1;
                @$v{keys %p} = (values %p) unless exists $v->{mode} && $v->{mode} ne $p{mode};
                $v->{of} = $1 =~ /cpus=\d+ of (\d+)/ ? $1 : '-';
            }
            $v->{counted} += $1 if /(\d+) aborts$/;
        }
    }
    push @{$boot{troubles}}, 'the kernel did not start'
        unless $spoke || $boot{skip} || $boot{broken};
    push @{$boot{troubles}},
        (defined $name ? "$name: the machine stopped here" : 'the machine stopped early')
        if $spoke && !$finished;
    return \%boot;
}

sub total {
    my ($boot) = @_;
    my %sum = (passed => 0, failed => 0, skipped => 0);
    for my $v (values %{$boot->{variants}}) { $sum{$_} += $v->{$_} for keys %sum }
    $sum{skipped}++ if $boot->{skip};
    # A trouble that no test has counted: a kernel that stopped, a CPU that stayed.
    $sum{failed} += grep { /did not start|machine stopped|refused$/ } @{$boot->{troubles}};
    return \%sum;
}

if (@ARGV == 2 && $ARGV[0] eq '--count') {
    my $boot = parse($ARGV[1]) or die "$ARGV[1]: $!\n";
    my $sum = total($boot);
    printf "%s: %d passed, %d failed, %d skipped%s\n", $boot->{kernel},
        @$sum{qw(passed failed skipped)}, @{$boot->{troubles}} ? "  <- $boot->{troubles}[0]" : '';
    exit 0;
}

my $tap = @ARGV && $ARGV[0] eq '--tap' && shift;
my ($rows, $logs) = @ARGV;

# "sections (libc)" and the like
sub how {
    my ($v) = @_;
    my $mode = $v->{mode} // '?';
    return $mode eq 'fallback' ? "fallback: $reasons[$v->{reason}]"
        : $mode eq '?' ? '?' : "sections ($mode)";
}

sub libc {
    my ($name, $v) = @_;
    my $version = $v->{libc} // '-';
    return $version eq '-' || index($name, $version) >= 0 ? $name : "$name ($version)";
}

# Without a plan and results a log that nobody wrote would look well.
sub print_tap {
    my ($rows, $logs) = @_;
    my ($n, $failed) = (0, 0);
    my $result = sub {
        my ($good, $text) = @_;
        $failed++ unless $good;
        printf "%s %d - %s\n", $good ? 'ok' : 'not ok', ++$n, $text;
    };
    open my $in, '<', $rows or die "$rows: $!\n";
    while (<$in>) {
        next if /^\s*(#|$|@)/;
        my ($row) = split;
        my $boot = parse("$logs/$row.log") or next;
        if ($boot->{skip}) {
            $result->(1, "$row # SKIP $boot->{skip}");
            next;
        }
        for my $name (@{$boot->{order}}) {
            my $v = $boot->{variants}{$name};
            my ($why) = map { /^\Q$name\E[:\/](.*)/ ? $1 : () } @{$boot->{skips}};
            if (!$v->{passed} && !$v->{failed} && $why) {
                $result->(1, "$row, $name # SKIP $why");
                next;
            }
            $result->($v->{passed} && !$v->{failed},
                sprintf '%s (%s), %s: %s, %d aborts, %d passed, %d failed',
                $row, $boot->{kernel}, libc($name, $v), how($v), $v->{counted} // 0,
                @$v{qw(passed failed)});
        }
        my @lost = grep { /did not start|machine stopped|refused$/ } @{$boot->{troubles}};
        $result->(0, "$row: $_") for @lost;
        $result->(0, "$row: nothing ran") unless @lost || @{$boot->{order}};
        print "#   $row: $_\n" for @{$boot->{troubles}};
    }
    print "1..$n\n";
    exit($failed || !$n ? 1 : 0);
}
print_tap($rows, $logs) if $tap;

my (%all, @troubles, %skips);
print "| row | kernel | arch | libc | operations | id from | registered | CPUs | aborts ",
    "| passed | failed | skipped |\n";
print "|---|---|---|---|---|---|---|---|---|---|---|---|\n";
open my $in, '<', $rows or die "$rows: $!\n";
while (<$in>) {
    next if /^\s*(#|$|@)/;
    my ($row, $arch) = split;
    my $boot = parse("$logs/$row.log") or next; # not selected
    my $sum = total($boot);
    $all{$_} += $sum->{$_} for keys %$sum;
    push @troubles, map { "$row: $_" } @{$boot->{troubles}};
    if ($boot->{skip}) {
        print "| $row | - | $arch | - | not run: $boot->{skip} | - | - | - | - | 0 | 0 | 1 |\n";
        next;
    }
    $skips{$_ =~ s/^[^:]*: //r}{"$row $_" =~ s/:.*//r}++ for @{$boot->{skips}};
    for my $name (@{$boot->{order}}) {
        my $v = $boot->{variants}{$name};
        my $how = how($v);
        my $length = $how !~ /^sections/ ? '-' : "$v->{length} of $v->{feature}";
        $length .= ', ids guarded' if ($v->{policed} // '') eq 'yes';
        my $cpus = $v->{cpus} // '-';
        $cpus .= " below $v->{of}" if defined $v->{cpus} && $v->{of} ne $cpus;
        printf "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %d | %d | %d |\n",
            $row, $boot->{kernel}, $arch, libc($name, $v), $how, $v->{id} // '-', $length, $cpus,
            $v->{counted} // 0, @$v{qw(passed failed skipped)};
    }
}
print "\n";
for my $reason (sort keys %skips) {
    my @where = sort keys %{$skips{$reason}};
    printf "skipped %d: %s (%s%s)\n", scalar @where, $reason, $where[0], @where > 1 ? ', ...' : '';
}
print "FAILED $_\n" for @troubles;
printf "%d passed, %d failed, %d skipped\n", map { $all{$_} // 0 } qw(passed failed skipped);
exit(($all{failed} // 0) > 0 || !($all{passed} // 0));
