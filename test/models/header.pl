#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# header.pl HEADER LITMUS OP THREAD - do the loads, stores and barriers of OP in the header, in
# their order, begin that thread of the model, or end it? (Or is the whole thread a beginning of
# OP?) Exit 1 if not.
use strict;
use warnings;

my ($header, $litmus, $op, $thread) = @ARGV;
sub text { open my $in, '<', $_[0] or die "$_[0]: $!\n"; local $/; return scalar <$in> }

my %arch = (
    AArch64 => ['__aarch64__', qr/^((?:ldr|ldar|ldapr|str|stlr|isb)\b|dmb \w+|dsb \w+)/],
    RISCV => ['__riscv\)', qr/^((?:l[wd]u?|s[wd])\b|fence \w+,\w+)/],
);

# An instruction without its operands, if it is one that counts.
sub ordered {
    my ($pattern, @instructions) = @_;
    return map {
        my $i = lc;
        $i =~ s/^\s+//;
        $i =~ s/,\s+/,/g;
        $i =~ s/\s+/ /g;
        $i =~ $pattern ? $1 : ()
    } @instructions;
}

my $model = text($litmus);
my ($name) = $model =~ /^(\w+)/;
my ($block, $pattern) = @{$arch{$name} or die "no such machine: $name\n"};

my ($machine) = text($header) =~ /^#elif defined\((?:$block)(.*?)^#elif/ms
    or die "no block for $name\n";
my ($macro) = $machine =~ /^#define PERCPU_RSEQ_OP_$op\b((?:[^\n]*\\\n)*[^\n]*)/m
    or die "no OP_$op for $name\n";
my @want = ordered($pattern, split /\\n(?:\\t)?/, join '', $macro =~ /"((?:[^"\\]|\\.)*)"/g);

my ($number) = $thread =~ /^P(\d+)$/ or die "no thread $thread\n";
my @rows = grep { /;\s*$/ && /\|/ && !/^ P0/ } split /\n/, $model;
my @have = ordered($pattern, map { (split /[|;]/)[$number] // '' } @rows);

my ($w, $h) = map { join ' ', map { "[$_]" } @$_ } \@want, \@have;
my $good = @want && (index($h, $w) == 0 || $w eq substr($h, -length $w)
    || (@have && index($w, $h) == 0));
print "$thread is $op of the header: @{[join ', ', @want]}\n";
print "the model has: @{[join ', ', @have]}\n$thread is not $op of the header\n" unless $good;
exit !$good;
