#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# lint.pl RULE FILE... - say where the files break a rule of this project; silence is good.
use strict;
use warnings;

my ($rule, @files) = @ARGV;
my $bad = 0;
sub complain { my ($file, $line, $what) = @_; print "$file:$line: $what\n"; $bad = 1; }

sub text_of
{
    my ($file) = @_;
    open my $in, '<', $file or die "lint.pl: $file: $!\n";
    local $/;
    my $text = <$in>;
    close $in;
    return $text // '';
}
sub lines_of { return split /\n/, text_of($_[0]), -1; }
sub line_at { my ($text, $at) = @_; return 1 + (substr($text, 0, $at) =~ tr/\n//); }

# Blank out comments, keep line numbers.
sub without_comments
{
    my ($text) = @_;
    $text =~ s{(/\*.*?\*/|//[^\n]*)|("(?:[^"\\\n]|\\.)*")}
              {my ($c, $s) = ($1, $2); defined $s ? $s : $c =~ s/[^\n]/ /gr}gse;
    return $text;
}

# The words are put together so that this file does not break its own rule.
my @words = map { join '', @$_ } ['sim', 'ple'], ['sim', 'ply'], ['ju', 'st'], ['bla', 'zing'];

my %rules = (
    # Symbol renames on declarations, and the empty compiler barrier, are not instructions.
    no_asm_in_percpu_h => sub {
        my $text = without_comments(text_of($_[0]));
        while ($text =~ /\b(__asm__|__asm|asm)\b/g) {
            my ($before, $rest) = (substr($text, 0, pos $text), substr($text, pos $text, 200));
            next if $rest =~ /^\s*\(\s*"\w+"\s*\)/ && $before =~ /\bextern\b[^;{}]*\z/
                || $rest =~ /^\s*volatile\s*\(\s*"" ::: "memory"\)/;
            complain($_[0], line_at($text, pos $text), 'asm belongs in rseq_abi.h');
        }
    },
    # The list in the first comment names each banner, in order, and nothing else.
    contents_match_sections => sub {
        my $text = text_of($_[0]);
        my ($head) = $text =~ m{^(.*?)#ifndef}s;
        my (%listed, %found);
        $listed{$1} = $2 while $head =~ /\[(\w+)\]\s+(.*?)(?=\s{2,}|\n|\s*\*\/)/g;
        delete $listed{0};
        while ($text =~ m{^/\* -{2,} \[(\w+)\] (.*?) -{2,} \*/$}mg) {
            complain($_[0], line_at($text, pos $text), "two sections [$1]") if exists $found{$1};
            $found{$1} = $2;
        }
        complain($_[0], 1, 'no table of contents, or no section') unless %listed && %found;
        for my $tag (sort keys %found) {
            my ($have, $want) = ($found{$tag}, $listed{$tag} // '(nothing)');
            # A banner may be the beginning of what the list says.
            complain($_[0], 1, "[$tag] is listed as \"$want\" and called \"$have\"")
                unless index($want, $have) == 0;
        }
        for my $tag (sort keys %listed) {
            next if exists $found{$tag} || $listed{$tag} =~ /^\(reserved/;
            complain($_[0], 1, "[$tag] is listed, and there is no such section");
        }
        my @order = $text =~ m{^/\* -{2,} \[(\w+)\]}mg;
        my @sorted = sort { $a =~ /^\d+$/ ? $a <=> $b : $a cmp $b } @order;
        complain($_[0], 1, "sections are out of order: @order") if "@order" ne "@sorted";
    },
    lines_of_100_columns => sub {
        my $n = 0;
        for my $line (lines_of($_[0])) {
            $n++;
            utf8::decode($line);
            complain($_[0], $n, length($line) . ' columns') if length $line > 100;
        }
    },
    # In line 2 only where something else has to be in line 1.
    licence_in_line_1_or_2 => sub {
        my @lines = (lines_of($_[0]), '', '');
        shift @lines if $lines[0] =~ /^#!/ || $_[0] =~ /\.litmus$/;
        complain($_[0], 1, 'no SPDX-License-Identifier: MIT')
            unless $lines[0] =~ /SPDX-License-Identifier: MIT\b/;
    },
    no_trailing_space => sub {
        my $n = 0;
        for my $line (lines_of($_[0])) {
            $n++;
            complain($_[0], $n, 'white space at the end') if $line =~ /[ \t\r]$/;
        }
        my $text = text_of($_[0]);
        complain($_[0], $n, 'no newline at the end') if $text !~ /\n\z/;
        complain($_[0], $n, 'empty lines at the end') if $text =~ /\n\n\z/;
    },
    no_tabs_in_C => sub {
        my $n = 0;
        for my $line (lines_of($_[0])) {
            $n++;
            complain($_[0], $n, 'a tab') if $line =~ /\t/;
        }
    },
    plain_words => sub {
        my $n = 0;
        my $any = join '|', @words;
        for my $line (lines_of($_[0])) {
            $n++;
            complain($_[0], $n, "the word \"$1\"") if $line =~ /\b($any)\b/i;
        }
    },
    # stdin: names that the README has to mention; long and typed forms may stand for each other.
    readme_names => sub {
        my $text = text_of($_[0]);
        while (my $name = <STDIN>) {
            chomp $name;
            (my $family = $name) =~ s/_u(32|64)$//;
            (my $short = $family) =~ s/^percpu_this_cpu_/this_cpu_/;
            next if grep { $text =~ /\b\Q$_\E\b/ } $name, $short;
            # this_cpu_{add,sub}: a list in braces
            my ($stem, $last) =
                $short =~ /^(.*?_)((?:add_|nr_|for_each_|status_|reason_|thread_)?[a-z]+)$/;
            next if defined $stem && $text =~ /\b\Q$stem\E\{[^}]*\b\Q$last\E\b[^}]*\}/;
            complain($_[0], 1, "does not mention $name");
        }
    },
);
die "usage: lint.pl RULE FILE...; rules: @{[sort keys %rules]}\n" unless $rule && $rules{$rule};
$rules{$rule}->($_) for @files;
exit $bad;
