#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# names.pl FILE... - names that the FILEs define at file scope, from preprocessed C on stdin.
#
# Input is the output of `cc -E` with its line markers, which say what comes from which file.
# Output: one "kind name" a line; kinds are function, variable, type and constant.
use strict;
use warnings;

my %wanted = map { $_ => 1 } @ARGV;
my ($inside, $text) = (0, '');
while (my $line = <STDIN>) {
    if ($line =~ /^# \d+ "([^"]*)"/) {
        (my $name = $1) =~ s,.*/,,;
        $inside = $wanted{$name};
    } elsif ($inside && $line !~ /^\s*#/) {
        $text .= $line;
    }
}

# Tokens that matter: strings become one token, numbers and other punctuation pass through.
my @tokens = $text =~ /("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[A-Za-z_]\w*|\d[\w.]*|\S)/g;
my %seen;
sub found { my ($kind, $name) = @_; print "$kind $name\n" unless $seen{"$kind $name"}++; }

# Remove WORD(...) from a list of tokens, for attributes and the like.
sub without_calls
{
    my ($words, @in) = @_;
    my @out;
    while (@in) {
        my $t = shift @in;
        if ($t =~ $words) {
            shift @in if @in && $in[0] =~ /^(volatile|goto)$/;
            next unless @in && $in[0] eq '(';
            my $depth = 0;
            while (@in) {
                my $u = shift @in;
                $depth++ if $u eq '(';
                $depth-- if $u eq ')';
                last if $depth == 0;
            }
            next;
        }
        push @out, $t;
    }
    return @out;
}

# One declaration or definition. @body: what was in its outermost braces.
sub declaration
{
    my ($head, $body) = @_;
    my @t = without_calls(qr/^(__attribute__|__asm__|asm|_Static_assert|static_assert)$/,
                          grep { $_ ne '__extension__' } @$head);
    my @bare = grep { !/^(;|\{\})$/ } @t;
    return unless @bare;
    for my $i (0 .. $#t - 1) {
        if ($t[$i] =~ /^(struct|union|enum|class)$/ && $t[$i + 1] =~ /^[A-Za-z_]/
            && $i + 2 <= $#t && ($t[$i + 2] eq '{}' || $t[$i + 2] eq ';' || $t[$i + 2] eq ':')) {
            found('type', $t[$i + 1]);
        }
    }
    if (grep { $_ eq 'enum' } @t and $body) {
        my $first = 1;
        for my $u (@$body) {
            found('constant', $u) if $first && $u =~ /^[A-Za-z_]/;
            $first = $u eq ',';
        }
    }
    if ($t[0] eq 'typedef') {
        my @names = grep { /^[A-Za-z_]/ } @t;
        found('type', $names[-1]);
        return;
    }
    for my $i (0 .. $#t - 1) { # the first name before a parenthesis
        if ($t[$i] =~ /^[A-Za-z_]/ && $t[$i + 1] eq '(') {
            found('function', $t[$i]);
            return;
        }
    }
    return if $t[0] =~ /^(struct|union|enum|class)$/
        && $t[-1] =~ /^(;|\{\})$/ && $t[-2] =~ /^(\{\}|$t[1])$/;
    my @names;
    for my $u (@t) {
        last if $u =~ /^[=\[]$/;
        push @names, $u if $u =~ /^[A-Za-z_]/;
    }
    found('variable', $names[-1]) if @names > 1;
}

my (@head, @body, $body_seen);
my $depth = 0;
for my $t (@tokens) {
    if ($t eq '{') {
        push @body, $t if $depth;
        $depth++;
    } elsif ($t eq '}') {
        $depth--;
        push @body, $t if $depth;
        if ($depth == 0) {
            my $function = @head && (join(' ', @head) =~ /\) *$/) && !grep { $_ eq '=' } @head;
            push @head, '{}';
            $body_seen = [@body];
            @body = ();
            if ($function) {
                declaration(\@head, undef);
                @head = ();
            }
        }
    } elsif ($depth) {
        push @body, $t;
    } elsif ($t eq ';') {
        push @head, ';';
        declaration(\@head, $body_seen);
        @head = ();
        $body_seen = undef;
    } else {
        push @head, $t;
    }
}
die "names.pl: braces do not match\n" if $depth;
