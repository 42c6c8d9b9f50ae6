//! Finds out whether a site's prolog ends with the exit status of gpufrac's prolog. A script that ignores a failure
//! lets the job start without its slice. Scripts are read, not run; the result is `Unsure` where the reader does not
//! understand the script.

mod harm;
mod steps;

use crate::rules::prolog::PROLOG_NEEDS;
pub use harm::{Harm, harms};
use steps::{After, CLOSING, Step, is_flag, steps};

/// The effect of the program's status on that of the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// The script ends with the program's status.
    Passed,
    /// The program runs only where the condition in this line holds, or does not hold.
    Depends(usize),
    /// `timeout` in this line ends the program after so many seconds.
    Hurried(usize, u64),
    /// Unknown, for the program in this line.
    Unsure(usize),
    /// The script ignores the status of the program in this line.
    Lost(usize),
    /// The program in this line does not get Slurm's variables.
    WithoutVariables(usize),
    /// The script ends in this line, before it runs the program.
    Unreached(usize),
}

/// Commands that end with status 0, whatever the status before them.
const HARMLESS: [&str; 7] = ["true", ":", "echo", "printf", "logger", "sleep", "mail"];

/// The interpreter of a script, with its options.
fn interpreter(text: &str) -> &str {
    let shebang = text.lines().next().unwrap_or_default();
    shebang.strip_prefix("#!").unwrap_or("/bin/sh")
}

fn is_shell(interpreter: &str) -> bool {
    let mut words = interpreter.split([' ', '/']);
    words.any(|word| matches!(word, "sh" | "bash" | "dash" | "ksh" | "zsh"))
}

/// The effect of the program's status in a script. None if the script does not run the program, or is not a shell
/// script.
pub fn ending(text: &str, program: &str) -> Option<Ending> {
    let interpreter = interpreter(text);
    if !is_shell(interpreter) {
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
    let worst = script.runs().into_iter().map(|at| script.of_run(at)).max();
    let named = || {
        let mut steps = script.steps.iter();
        let at = steps.position(|step| step.words.iter().any(|word| word.contains(program)))?;
        Some(script.of_mention(at))
    };
    worst.or_else(named)
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

    /// The judgement of the command at this index, which runs the program.
    fn of_run(&self, at: usize) -> Ending {
        let step = &self.steps[at];
        // A trap can end the script with another status.
        let trap = self.steps.iter().find(|step| step.command() == "trap");
        if let Some(trap) = trap.filter(|trap| trap.words.iter().any(|word| word.contains("exit")))
        {
            return Ending::Unsure(trap.line);
        }
        let limit = step.time_limit().filter(|limit| *limit < PROLOG_NEEDS);
        let hurried = limit.map_or(Ending::Passed, |limit| Ending::Hurried(step.line, limit));
        let depends = self
            .condition_of(at)
            .map_or(Ending::Passed, Ending::Depends);
        let ending = || self.after(at).max(hurried).max(depends);
        self.never(at).unwrap_or_else(ending)
    }

    /// The line of a condition on which it depends whether the script comes to this index. Tests of files are left out:
    /// scripts ask whether the program is installed.
    fn condition_of(&self, at: usize) -> Option<usize> {
        let mut open: Vec<&Step> = Vec::new();
        let mut exit = None;
        for (position, step) in self.steps[..=at].iter().enumerate() {
            let before = position.checked_sub(1).map(|before| &self.steps[before]);
            let chained = before.filter(|before| matches!(before.after, After::And | After::Or));
            if position < at && step.exit() == Some(false) {
                exit = exit.or_else(|| chained.or(open.last().copied()).filter(is_condition));
            }
            if position == at {
                let chained = chained.filter(|_| step.exit().is_none());
                let inner = chained.into_iter().chain(open.iter().rev().copied());
                let first = inner.chain(exit).find(is_condition);
                return first.map(|step| step.line);
            }
            match step.depth_change() {
                1.. => open.push(step),
                ..0 => drop(open.pop()),
                0 => {}
            }
        }
        None
    }

    /// The judgement of a command that names the program, and may run it.
    fn of_mention(&self, at: usize) -> Ending {
        self.never(at)
            .unwrap_or(Ending::Unsure(self.steps[at].line))
    }

    /// Why the command at this index never makes a slice.
    fn never(&self, at: usize) -> Option<Ending> {
        let step = &self.steps[at];
        self.end_before(at).map(Ending::Unreached).or_else(|| {
            step.drops_variables()
                .then_some(Ending::WithoutVariables(step.line))
        })
    }

    /// The line in which the script ends in every run before it comes to this index.
    fn end_before(&self, at: usize) -> Option<usize> {
        let (mut depth, mut depends) = (0_isize, false);
        for step in &self.steps[..at] {
            let ends = step.exit().is_some() || step.command_is("exec");
            depth += step.depth_change();
            if ends && depth == 0 && !depends && step.depth_change() == 0 {
                return Some(step.line);
            }
            if depth < 0 {
                // The script is not understood.
                return None;
            }
            depends = matches!(step.after, After::And | After::Or);
        }
        None
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
            return if bad { Ending::Passed } else { Ending::Lost(next.line) };
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
                if exits { Ending::Passed } else { Ending::Lost(next.line) }
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

/// Whether a command is a condition on something else than files.
fn is_condition(step: &&Step) -> bool {
    const FILES: [&str; 6] = ["-x", "-e", "-f", "-r", "-s", "-d"];
    let asks_files = step.words.iter().any(|word| FILES.contains(&word.as_str()));
    let first = step.words.first().map_or("", String::as_str);
    let is_loop = ["for", "select", "{", "("].contains(&first) || first.ends_with("()");
    !asks_files && !is_loop && first != "function"
}

/// The name in `{name}` or `name`.
fn bare(name: &str) -> &str {
    name.trim_start_matches('{').trim_end_matches('}')
}

#[cfg(test)]
mod tests;
