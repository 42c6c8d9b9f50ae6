//! The options in gpufrac(1) are those of the command line.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};

use super::Args;

const BEGIN: &str =
    ".\\\" The options of the commands: UPDATE_EXPECT=1 cargo test -p gpufrac args::\n";
const END: &str = ".SH \"EXIT STATUS\"\n";

/// What the section says of all commands.
const OF_ALL: [&str; 3] = ["help", "config", "node"];

/// Text for roff: hyphens that can be copied, and no line that roff takes for a request.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines = text
        .lines()
        .map(|line| if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.into() });
    lines.collect::<Vec<String>>().join("\n")
}

/// `--from FILE`, with its short form; an argument without a dash has its name alone.
fn spelling(argument: &Arg) -> String {
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let options: Vec<String> = short.into_iter().chain(long).collect();
    let names: Vec<&str> = argument
        .get_value_names()
        .unwrap_or_default()
        .iter()
        .map(|name| name.as_str())
        .collect();
    let takes = argument.get_action().takes_values();
    let values = if takes { names.join(" ") } else { String::new() };
    [options.join(", "), values].join(" ").trim().to_owned()
}

fn described(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help());
    let mut text = help.map(ToString::to_string).unwrap_or_default();
    let shown = argument.get_action().takes_values() && !argument.is_hide_default_value_set();
    let defaults: Vec<_> = argument
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy())
        .collect();
    if shown && !defaults.is_empty() {
        let _ = write!(text, " [default: {}]", defaults.join(", "));
    }
    let values: Vec<_> = argument
        .get_possible_values()
        .into_iter()
        .filter(|value| !value.is_hide_set())
        .collect();
    if argument.get_action().takes_values() && !values.is_empty() {
        let _ = write!(text, "; one of:");
        for value in values {
            let help = value
                .get_help()
                .map(|help| format!(" ({help})"))
                .unwrap_or_default();
            let _ = write!(text, " {}{help},", value.get_name());
        }
        text.pop();
    }
    text
}

fn commands(command: &Command, before: &str, text: &mut String) {
    for command in command
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && command.get_name() != "help")
    {
        let name = format!("{before}{}", command.get_name());
        let arguments: Vec<&Arg> = command
            .get_arguments()
            .filter(|argument| {
                !argument.is_hide_set() && !OF_ALL.contains(&argument.get_id().as_str())
            })
            .collect();
        if !arguments.is_empty() {
            let _ = writeln!(text, ".SS \"{}\"", roff(&name));
        }
        for argument in arguments {
            let _ = writeln!(
                text,
                ".TP\n.B {}\n{}",
                roff(&spelling(argument)),
                roff(&described(argument))
            );
        }
        commands(command, &format!("{name} "), text);
    }
}

#[test]
fn the_manual_page_has_the_options_of_each_command() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/man/gpufrac.1");
    let page = fs::read_to_string(&path).unwrap();
    let mut options = String::from(BEGIN);
    commands(&Args::command(), "", &mut options);
    let (before, rest) = page
        .split_once(BEGIN)
        .expect("the page has a section for the options");
    let (_, after) = rest.split_once(END).expect("a section follows");
    let fresh = format!("{before}{options}{END}{after}");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, fresh).unwrap();
    } else {
        assert!(
            page == fresh,
            "gpufrac(1) lacks options of the command line; write them with UPDATE_EXPECT=1"
        );
    }
}
