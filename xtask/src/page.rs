//! Reads a page of docs as a program: its blocks marked `console` are commands, with the host in the prompt.

use anyhow::{Result, bail};

/// A command of a page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The heading above the command.
    pub section: String,
    pub place: Place,
    pub command: String,
    /// The output on the page; `...` stands for any text.
    pub printed: String,
}

/// The host and the user of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// The user; None for root.
    pub user: Option<String>,
    /// The name of a host, or `all`.
    pub host: String,
}

/// The steps of a page, in order.
pub(crate) fn steps(text: &str) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut section, mut inside) = (String::new(), false);
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if let Some(heading) = line.strip_prefix("## ") {
            heading.clone_into(&mut section);
        } else if !inside {
        } else if let Some((place, command)) = prompt(line) {
            let mut command = command.to_owned();
            if let Some(word) = here_document(&command) {
                let rest = lines.by_ref().map(|(_, line)| line);
                let Some(document) = until(rest, &word) else {
                    bail!("line {}: the input does not end with {word}", number + 1);
                };
                command.push_str(&document);
            }
            steps.push(Step {
                section: section.clone(),
                place,
                command,
                printed: String::new(),
            });
        } else if let Some(step) = steps.last_mut() {
            step.printed.push_str(line);
            step.printed.push('\n');
        } else {
            bail!(
                "line {}: a command begins with a prompt such as `ctl# `",
                number + 1
            );
        }
    }
    if steps.is_empty() {
        bail!("the page has no commands");
    }
    Ok(steps)
}

/// Splits `ctl# command` or `alice@login$ command`.
fn prompt(line: &str) -> Option<(Place, &str)> {
    let (prompt, command) = line.split_once(' ')?;
    let is_name = |name: &str| {
        !name.is_empty()
            && name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    let (user, host) = match prompt.split_once('@') {
        Some((user, host)) => (Some(user), host.strip_suffix('$')?),
        None => (None, prompt.strip_suffix('#')?),
    };
    let place = Place {
        user: user.map(str::to_owned),
        host: host.to_owned(),
    };
    (is_name(host) && user.is_none_or(is_name)).then_some((place, command))
}

/// The word that ends the input of a command: `cat <<'END'`.
fn here_document(command: &str) -> Option<String> {
    let (_, word) = command.split_once("<<'")?;
    Some(word.split_once('\'')?.0.to_owned())
}

/// The lines up to the one that is `word`, each after a line break.
fn until<'a>(lines: impl Iterator<Item = &'a str>, word: &str) -> Option<String> {
    let mut text = String::new();
    for line in lines {
        text.push('\n');
        text.push_str(line);
        if line == word {
            return Some(text);
        }
    }
    None
}

/// Whether the output of a command matches the page, line by line, with `...` for any text.
pub(crate) fn is_printed(expected: &str, printed: &str) -> bool {
    let mut rest = printed;
    let parts: Vec<&str> = expected.trim_end().split("...").collect();
    for part in parts {
        match rest.find(part.trim_matches('\n')) {
            Some(at) => rest = &rest[at + part.trim_matches('\n').len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# Page
```sh
not run
```
## One
```console
ctl# cat >f <<'END'
# no prompt
END
alice@login$ sbatch job
Submitted batch job ...
```
";

    #[test]
    fn commands_are_read_with_their_hosts_their_input_and_what_they_print() {
        let steps = steps(PAGE).unwrap();
        assert_eq!(steps.len(), 2);
        assert_eq!(steps[0].command, "cat >f <<'END'\n# no prompt\nEND");
        assert_eq!(steps[0].place.host, "ctl");
        assert_eq!(steps[1].place.user.as_deref(), Some("alice"));
        assert_eq!(steps[1].section, "One");
        assert_eq!(steps[1].printed, "Submitted batch job ...\n");
    }

    #[test]
    fn a_page_without_commands_or_with_output_alone_is_refused() {
        for text in [
            "# Page\n",
            "```console\nIDLE\n```\n",
            "```console\nctl# a <<'E'\n```\n",
        ] {
            assert!(steps(text).is_err(), "{text}");
        }
    }

    #[test]
    fn printed_lines_are_compared_in_order() {
        assert!(is_printed(
            "Submitted batch job ...\n",
            "Submitted batch job 7\n"
        ));
        assert!(is_printed("...\nb\n", "a\nb\n"));
        assert!(is_printed("", "anything"));
        assert!(!is_printed("b\n...\na\n", "a\nb\n"));
        assert!(!is_printed("0.25\n", "0.5\n"));
    }
}
