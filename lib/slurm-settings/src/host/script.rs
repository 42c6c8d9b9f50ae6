//! Finds out whether a site's prolog ends with the exit status of gpufrac's prolog. A script that ignores a failure
//! lets the job start without its slice. Scripts are read, not run; the result is `Unsure` where the reader does not
//! understand the script.

/// The effect of the program's status on that of the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// The script ends with the program's status.
    Passed,
    /// Unknown, for the program in this line.
    Unsure(usize),
    /// The script ignores the status of the program in this line.
    Lost(usize),
}

/// The separator between a command and the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    End,
    And,
    Or,
    Pipe,
    Background,
}

/// A command with its separators.
#[derive(Debug)]
struct Step {
    line: usize,
    words: Vec<String>,
    after: After,
}

/// Words before a command.
const OPENING: [&str; 6] = ["then", "do", "else", "{", "(", "time"];
const CLOSING: [&str; 6] = ["fi", "done", "esac", "}", ")", ";;"];
const CONDITIONS: [&str; 4] = ["if", "elif", "while", "until"];
/// Programs that run another program and end with its status.
const WRAPPERS: [&str; 8] = [
    "exec", "env", "timeout", "nice", "nohup", "command", "sudo", "ionice",
];
/// Commands that end with status 0, whatever the status before them.
const HARMLESS: [&str; 7] = ["true", ":", "echo", "printf", "logger", "sleep", "mail"];

/// The effect of the program's status in a script. None if the script does not run the program, or is not a shell
/// script.
pub fn ending(text: &str, program: &str) -> Option<Ending> {
    let shebang = text.lines().next().unwrap_or_default();
    let interpreter = shebang.strip_prefix("#!").unwrap_or("/bin/sh");
    let is_shell = interpreter
        .split([' ', '/'])
        .any(|word| matches!(word, "sh" | "bash" | "dash" | "ksh" | "zsh"));
    if !is_shell {
        return text.contains(program).then_some(Ending::Unsure(1));
    }
    let steps = steps(text);
    let script = Script {
        exits_early: interpreter
            .split(' ')
            .skip(1)
            .any(|word| is_flag(word, 'e')),
        names: names_of(&steps, program),
        program,
        steps,
    };
    let runs = script.runs();
    let worst = runs.iter().map(|at| script.after(*at)).max();
    let named = || {
        let mut steps = script.steps.iter();
        steps.find(|step| step.words.iter().any(|word| word.contains(program)))
    };
    worst.or_else(|| named().map(|step| Ending::Unsure(step.line)))
}

fn is_flag(word: &str, flag: char) -> bool {
    let flags = word.strip_prefix('-');
    flags.is_some_and(|flags| !flags.starts_with('-') && flags.contains(flag))
}

/// The variables that hold the program's path.
fn names_of(steps: &[Step], program: &str) -> Vec<String> {
    let words = steps.iter().flat_map(|step| &step.words);
    words
        .filter_map(|word| word.split_once('='))
        .filter(|(_, value)| value.rsplit('/').next() == Some(program))
        .map(|(name, _)| name.to_owned())
        .collect()
}

struct Script<'a> {
    program: &'a str,
    names: Vec<String>,
    steps: Vec<Step>,
    /// `#!/bin/sh -e`
    exits_early: bool,
}

impl Script<'_> {
    /// The indexes of the commands that run the program.
    fn runs(&self) -> Vec<usize> {
        let all = self.steps.iter().enumerate();
        all.filter(|(_, step)| self.is_program(step.command()))
            .map(|(at, _)| at)
            .collect()
    }

    fn is_program(&self, word: &str) -> bool {
        let variable = word.strip_prefix('$').map(bare);
        word.rsplit('/').next() == Some(self.program)
            || variable.is_some_and(|name| self.names.iter().any(|known| known == name))
    }

    /// The effect of the status of the command at this index.
    fn after(&self, at: usize) -> Ending {
        let step = &self.steps[at];
        if step.wrappers().any(|word| word == "exec") {
            return Ending::Passed;
        }
        if step.condition().is_some() {
            return self.in_condition(at);
        }
        // `a && b` has the status of `a` if that is not 0.
        let mut last = at;
        while self.steps[last].after == After::And && last + 1 < self.steps.len() {
            last += 1;
        }
        match self.steps[last].after {
            After::Background => Ending::Lost(step.line),
            After::Pipe if !self.is_set(at, 'o', "pipefail") => Ending::Lost(step.line),
            After::Or if last != at => Ending::Unsure(step.line),
            After::Or => self.in_or(at),
            _ if self.exits_early(at) => Ending::Passed,
            _ if self.in_function(at) => Ending::Unsure(step.line),
            After::Pipe => Ending::Unsure(step.line),
            After::End | After::And => self.followed(step.line, last + 1),
        }
    }

    fn exits_early(&self, at: usize) -> bool {
        self.exits_early || self.is_set(at, 'e', "errexit")
    }

    /// Whether `set` switched an option on before this command.
    fn is_set(&self, at: usize, flag: char, name: &str) -> bool {
        let before = self.steps[..at].iter();
        let sets = before.filter(|step| step.command() == "set");
        sets.fold(false, |is_set, step| {
            let mut words = step.words.iter().skip(1);
            let on = |word: &str| (flag != 'o' && is_flag(word, flag)) || word == name;
            if words.clone().any(|word| word.starts_with('+')) {
                return is_set && !words.any(|word| word.contains(flag) || word == name);
            }
            is_set || words.any(|word| on(word))
        })
    }

    /// Whether the command is in a function. Callers of functions are not looked for.
    fn in_function(&self, at: usize) -> bool {
        let mut depth = 0_usize;
        for step in &self.steps[..=at] {
            let first = step.words.first().map_or("", String::as_str);
            if first == "function" || first.ends_with("()") || step.words.iter().any(|w| w == "()")
            {
                depth += 1;
            } else if first == "}" {
                depth = depth.saturating_sub(1);
            }
        }
        depth > 0
    }

    /// `if ! program; then ... exit 1; fi`
    fn in_condition(&self, at: usize) -> Ending {
        let step = &self.steps[at];
        let negated = step.words.iter().any(|word| word == "!");
        let mut depth = 0_usize;
        let mut in_else = false;
        for next in &self.steps[at + 1..] {
            let first = next.words.first().map_or("", String::as_str);
            match first {
                "if" => depth += 1,
                "fi" if depth == 0 => return Ending::Lost(step.line),
                "fi" => depth -= 1,
                "else" if depth == 0 => in_else = true,
                "elif" if depth == 0 => return Ending::Unsure(step.line),
                _ => {}
            }
            if negated != in_else {
                match next.exit() {
                    Some(true) => return Ending::Passed,
                    Some(false) => return Ending::Lost(next.line),
                    None if next.command() == "return" => return Ending::Unsure(step.line),
                    None => {}
                }
            }
        }
        Ending::Unsure(step.line)
    }

    /// `program || ...`
    fn in_or(&self, at: usize) -> Ending {
        let line = self.steps[at].line;
        let Some(next) = self.steps.get(at + 1) else {
            return Ending::Unsure(line);
        };
        if let Some(bad) = next.exit() {
            return if bad {
                Ending::Passed
            } else {
                Ending::Lost(next.line)
            };
        }
        let first = next.words.first().map_or("", String::as_str);
        if first == "{" || first == "(" {
            let mut block = self.steps[at + 1..].iter();
            let closed = |step: &&Step| step.words.iter().any(|word| word == "}" || word == ")");
            let exit = block
                .by_ref()
                .take_while(|step| !closed(step))
                .find_map(Step::exit);
            return match exit {
                Some(true) => Ending::Passed,
                Some(false) | None => Ending::Lost(line),
            };
        }
        match (next.kept_status(), next.command()) {
            (Some(name), _) => self.kept(name, line, at + 2),
            (None, command) if HARMLESS.contains(&command) => Ending::Lost(line),
            (None, _) => Ending::Unsure(line),
        }
    }

    /// The commands from this index on, after the program.
    fn followed(&self, line: usize, mut at: usize) -> Ending {
        while let Some(next) = self.steps.get(at) {
            let first = next.words.first().map_or("", String::as_str);
            if CLOSING.contains(&first) && next.words.len() == 1 {
                at += 1;
            } else if first == "else" || first == "elif" {
                // The other branch is not run.
                let rest = self.steps[at..].iter();
                let skipped = rest.take_while(|step| step.words.first().is_none_or(|w| w != "fi"));
                at += skipped.count();
            } else {
                break;
            }
        }
        let Some(next) = self.steps.get(at) else {
            return Ending::Passed;
        };
        if let Some(name) = next.kept_status() {
            return self.kept(name, line, at + 1);
        }
        match next.exit() {
            Some(true) => Ending::Passed,
            Some(false) => Ending::Lost(next.line),
            // The script reads the status, and may act on it.
            None if next.words.iter().any(|word| word.contains("$?")) => {
                let exits = self.steps[at..]
                    .iter()
                    .any(|step| step.exit() == Some(true));
                if exits {
                    Ending::Passed
                } else {
                    Ending::Lost(next.line)
                }
            }
            None => Ending::Lost(next.line),
        }
    }

    /// The script keeps the status in a variable.
    fn kept(&self, name: &str, line: usize, from: usize) -> Ending {
        let rest = self.steps.get(from..).unwrap_or_default();
        let uses = |step: &&Step| {
            let mut words = step.words.iter();
            words.any(|word| word.strip_prefix('$').map(bare) == Some(name))
        };
        let mut using = rest.iter().filter(uses);
        if using.clone().any(|step| step.exit() == Some(true)) {
            return Ending::Passed;
        }
        match using.next() {
            Some(_) => Ending::Unsure(line),
            None => Ending::Lost(line),
        }
    }
}

/// The name in `{name}` or `name`.
fn bare(name: &str) -> &str {
    name.trim_start_matches('{').trim_end_matches('}')
}

impl Step {
    /// The words without those that open a block or condition, and without assignments.
    fn own(&self) -> impl Iterator<Item = &str> {
        let words = self.words.iter().map(String::as_str);
        words.skip_while(|word| {
            let first = word.chars().next().unwrap_or('=');
            let assigns = word.contains('=') && (first.is_alphabetic() || first == '_');
            OPENING.contains(word) || CONDITIONS.contains(word) || *word == "!" || assigns
        })
    }

    fn condition(&self) -> Option<&str> {
        let first = self.words.first()?.as_str();
        CONDITIONS.contains(&first).then_some(first)
    }

    /// The wrappers before the command.
    fn wrappers(&self) -> impl Iterator<Item = &str> {
        self.own().take_while(|word| is_before_command(word))
    }

    /// The program that is run.
    fn command(&self) -> &str {
        let mut words = self.own();
        let first = words.next().unwrap_or_default();
        if !WRAPPERS.contains(&first) {
            return first;
        }
        words
            .find(|word| !is_before_command(word))
            .unwrap_or_default()
    }

    /// For `exit`: whether it ends with a status other than 0 if the command before it failed.
    fn exit(&self) -> Option<bool> {
        let mut words = self.own();
        (words.next() == Some("exit")).then(|| words.next() != Some("0"))
    }

    /// The variable in `name=$?`.
    fn kept_status(&self) -> Option<&str> {
        let mut words = self.words.iter();
        words.find_map(|word| {
            let (name, value) = word.split_once('=')?;
            matches!(value, "$?" | "${?}").then_some(name)
        })
    }
}

/// Whether a word can stand between the first wrapper and the command: a wrapper, its option or number, a variable.
fn is_before_command(word: &str) -> bool {
    WRAPPERS.contains(&word)
        || word.starts_with('-')
        || word.starts_with(|c: char| c.is_ascii_digit())
        || (word.contains('=') && !word.starts_with('/'))
}

/// The commands of a script, in order.
fn steps(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut step = Reader::default();
    for (number, line) in text.lines().enumerate() {
        let joined = line.strip_suffix('\\');
        step.at = number + 1;
        step.read(joined.unwrap_or(line), &mut steps);
        if joined.is_none() && step.quote.is_none() {
            step.end(After::End, &mut steps);
        }
    }
    step.end(After::End, &mut steps);
    steps
}

/// The state of the parser.
#[derive(Default)]
struct Reader {
    /// The number of the current line.
    at: usize,
    /// The line of the command's first word.
    line: usize,
    words: Vec<String>,
    word: String,
    quote: Option<char>,
}

impl Reader {
    fn read(&mut self, line: &str, steps: &mut Vec<Step>) {
        let mut rest = line.chars().peekable();
        let mut before = ' ';
        while let Some(character) = rest.next() {
            let next = rest.peek().copied().unwrap_or(' ');
            match (self.quote, character) {
                (Some(open), _) if character == open => self.quote = None,
                (Some(_), _) => self.word.push(character),
                (None, '"' | '\'') => self.quote = Some(character),
                (None, '#') if self.word.is_empty() => break,
                (None, ';') => {
                    self.end(After::End, steps);
                }
                (None, '|') if next == '|' => {
                    rest.next();
                    self.end(After::Or, steps);
                }
                (None, '|') => self.end(After::Pipe, steps),
                (None, '&') if next == '&' => {
                    rest.next();
                    self.end(After::And, steps);
                }
                // `2>&1`, `&>file`
                (None, '&') if before == '>' || next == '>' => self.word.push(character),
                (None, '&') => self.end(After::Background, steps),
                (None, ' ' | '\t') => self.end_word(),
                (None, _) => self.word.push(character),
            }
            before = character;
        }
        self.end_word();
    }

    fn end_word(&mut self) {
        if !self.word.is_empty() {
            if self.words.is_empty() {
                self.line = self.at;
            }
            self.words.push(std::mem::take(&mut self.word));
        }
    }

    fn end(&mut self, after: After, steps: &mut Vec<Step>) {
        self.end_word();
        let (line, words) = (self.line, std::mem::take(&mut self.words));
        if !words.is_empty() {
            steps.push(Step { line, words, after });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<Ending> {
        ending(text, "gpufrac-prolog")
    }

    #[test]
    fn scripts_that_end_with_the_programs_exit_status() {
        for text in [
            "#!/bin/sh\nexec /usr/sbin/gpufrac-prolog \"$@\"\necho never\n",
            "#!/bin/sh\n/opt/site/first\n/usr/sbin/gpufrac-prolog\n",
            "#!/bin/bash\n/usr/sbin/gpufrac-prolog || exit $?\nlogger done\n",
            "#!/bin/bash\n/usr/sbin/gpufrac-prolog || exit \"$?\"\nlogger done\n",
            "/usr/sbin/gpufrac-prolog || exit 1; logger done\n",
            "#!/bin/sh -e\n/usr/sbin/gpufrac-prolog\nlogger done\n",
            "#!/bin/bash\nset -euo pipefail\n/usr/sbin/gpufrac-prolog 2>&1 | logger\nlogger done\n",
            "#!/bin/sh\nset -e\nexport A=b\nA=1 timeout -k 5 60 /usr/sbin/gpufrac-prolog\nlogger done\n",
            "#!/bin/sh\n/usr/sbin/gpufrac-prolog\nexit $?\n",
            "#!/bin/sh\n/usr/sbin/gpufrac-prolog\nrc=$?\nlogger $rc\nexit \"$rc\"\n",
            "#!/bin/sh\n/usr/sbin/gpufrac-prolog || rc=$?\nexit ${rc}\n",
            "#!/bin/sh\nif ! /usr/sbin/gpufrac-prolog; then\n  logger bad\n  exit 1\nfi\nlogger good\n",
            "#!/bin/sh\nif /usr/sbin/gpufrac-prolog; then\n  logger good\nelse\n  exit 1\nfi\nlogger good\n",
            "#!/bin/sh\n/usr/sbin/gpufrac-prolog\nif [ $? -ne 0 ]; then exit 1; fi\nlogger good\n",
            "#!/bin/sh\n/usr/sbin/gpufrac-prolog || { logger bad; exit 1; }\nlogger good\n",
            "#!/bin/sh\n/usr/sbin/gpufrac-prolog || {\n logger bad\n exit 1\n}\nlogger good\n",
            "#!/bin/sh\nP=/usr/sbin/gpufrac-prolog\n\"$P\" || exit $?\nlogger good\n",
            "#!/bin/sh\nif [ -x /usr/sbin/gpufrac-prolog ]; then\n  /usr/sbin/gpufrac-prolog\nfi\n",
            "#!/bin/sh\ncase $SLURM_JOB_PARTITION in\ngpu)\n  /usr/sbin/gpufrac-prolog || exit $?\n  ;;\nesac\nlogger good\n",
            "#!/bin/sh\n# gpufrac-prolog; true\n/usr/sbin/gpufrac-prolog # ; true\n",
            "#!/bin/sh\n/usr/sbin/gpufrac-prolog \\\n  || exit $?\ntrue\n",
        ] {
            assert_eq!(of(text), Some(Ending::Passed), "{text}");
        }
    }

    #[test]
    fn scripts_that_lose_the_exit_status() {
        for (text, line) in [
            ("#!/bin/sh\n/usr/sbin/gpufrac-prolog; true\n", 2),
            ("#!/bin/sh\n/usr/sbin/gpufrac-prolog || true\n", 2),
            ("#!/bin/sh\n/usr/sbin/gpufrac-prolog || :\n", 2),
            ("#!/bin/sh\n/usr/sbin/gpufrac-prolog || exit 0\n", 2),
            (
                "#!/bin/sh\n/usr/sbin/gpufrac-prolog || logger bad\nexit 0\n",
                2,
            ),
            (
                "#!/bin/sh\n/usr/sbin/gpufrac-prolog\n\n# all is well\nexit 0\n",
                5,
            ),
            ("#!/bin/sh\n/usr/sbin/gpufrac-prolog\nlogger done\n", 3),
            ("#!/bin/sh\n/usr/sbin/gpufrac-prolog &\nwait\n", 2),
            ("#!/bin/sh\n/usr/sbin/gpufrac-prolog | logger\n", 2),
            (
                "#!/bin/sh\nset -e\nset +e\n/usr/sbin/gpufrac-prolog\nlogger done\n",
                5,
            ),
            (
                "#!/bin/sh\n/usr/sbin/gpufrac-prolog\nrc=$?\nlogger done\n",
                2,
            ),
            (
                "#!/bin/sh\nif ! /usr/sbin/gpufrac-prolog; then\n  logger bad\nfi\nexit 0\n",
                2,
            ),
            (
                "#!/bin/sh\n/usr/sbin/gpufrac-prolog || { logger bad; }\nexit 0\n",
                2,
            ),
            ("#!/bin/bash\nset -e\n/usr/sbin/gpufrac-prolog || true\n", 3),
        ] {
            assert_eq!(of(text), Some(Ending::Lost(line)), "{text}");
        }
    }

    #[test]
    fn scripts_that_are_not_understood_are_reported_as_unknown() {
        for (text, line) in [
            (
                "#!/usr/bin/python3\nimport subprocess\nsubprocess.run('/usr/sbin/gpufrac-prolog')\n",
                1,
            ),
            (
                "#!/bin/sh\nrun() {\n  /usr/sbin/gpufrac-prolog\n}\nrun || exit 1\n",
                3,
            ),
            (
                "#!/bin/sh\nfor p in /usr/sbin/gpufrac-prolog /x; do $p || exit; done\n",
                2,
            ),
            (
                "#!/bin/sh\n/usr/sbin/gpufrac-prolog || die \"no slice\"\n",
                2,
            ),
            (
                "#!/bin/sh\n/usr/sbin/gpufrac-prolog\nrc=$?\n[ $rc = 0 ] || finish $rc\n",
                2,
            ),
        ] {
            assert_eq!(of(text), Some(Ending::Unsure(line)), "{text}");
        }
        // The script does not run the program.
        assert_eq!(of("#!/bin/sh\n# /usr/sbin/gpufrac-prolog\nexit 0\n"), None);
        assert_eq!(of("#!/bin/sh\n"), None);
    }

    #[test]
    fn any_text_is_read() {
        for text in [
            "",
            "\"",
            "'#\n",
            "a ||",
            "gpufrac-prolog ||",
            "gpufrac-prolog &&",
            "if gpufrac-prolog",
            "|",
            "&&\n;;",
            "\\",
        ] {
            of(text);
        }
    }
}
