//! Completion of a partially typed line.

use crate::command::{Completing, Completion};
use crate::flags::{Flag, FlagKind};

/// Returns whole lines that complete the arguments of a command typed so far; `of` completes one argument.
pub(crate) fn complete(command: &str, flags: &[Flag], of: Option<&Completion>, typed: &str) -> Vec<String> {
    let Some(complete) = of else { return flag_names(command, flags, typed) };
    let Some(argument) = argument(flags, typed) else { return flag_names(command, flags, typed) };
    let begun = &typed[..typed.len() - argument.typed.len()];
    let mut found = complete(&argument);
    found.retain(|word| word.starts_with(&argument.typed));
    found.sort();
    found.iter().map(|word| format!("{command} {begun}{word}")).collect()
}

/// Returns the flags whose names match, if one is being typed.
fn flag_names(command: &str, flags: &[Flag], typed: &str) -> Vec<String> {
    let word = typed.rsplit(' ').next().unwrap_or_default();
    let Some(name) = word.strip_prefix("--").filter(|name| !name.contains('=')) else { return vec![] };
    let begun = &typed[..typed.len() - name.len()];
    let mut names: Vec<&str> = flags.iter().map(|flag| flag.name).collect();
    names.retain(|flag| flag.starts_with(name) && *flag != name);
    names.sort_unstable();
    names.iter().map(|name| format!("{command} {begun}{name}")).collect()
}

/// Returns the argument or value at the end of the text; `None` if a flag's name is being typed.
fn argument(flags: &[Flag], text: &str) -> Option<Completing> {
    let mut completing = Completing::default();
    let mut words: Vec<&str> = text.split(' ').collect();
    let last = words.pop().unwrap_or_default();
    let mut waiting: Option<&str> = None;
    for word in words.into_iter().filter(|word| !word.is_empty()) {
        if waiting.take().is_some() {
            continue;
        }
        match word.strip_prefix("--") {
            Some(name) if !name.contains('=') && !is_switch(flags, name) => waiting = Some(name),
            Some(_) => {}
            None if word.starts_with('-') => {}
            None => completing.before.push(word.to_owned()),
        }
    }
    match (waiting, last.strip_prefix("--").map(|flag| flag.split_once('='))) {
        (Some(flag), _) => {
            completing.flag = Some(flag.to_owned());
            completing.typed = last.to_owned();
        }
        (None, Some(Some((flag, value)))) => {
            completing.flag = Some(flag.to_owned());
            completing.typed = value.to_owned();
        }
        (None, Some(None)) => return None,
        (None, None) => completing.typed = last.to_owned(),
    }
    Some(completing)
}

fn is_switch(flags: &[Flag], name: &str) -> bool {
    flags.iter().any(|flag| flag.name == name && flag.kind == FlagKind::Bool)
}

#[cfg(test)]
mod tests {
    use crate::{Call, Command, Flag, Output};

    fn command() -> Command {
        let nothing = |_: Call| async { Ok(Output::none()) };
        Command::new("db/get", "", nothing)
            .flag(Flag::text("index", "").short('i'))
            .flag(Flag::switch("delete", ""))
            .completes(|argument| match (&argument.flag, argument.before.len()) {
                (Some(flag), _) => vec![format!("{flag}-1")],
                (None, 0) => vec!["nodes".into(), "names".into(), "routes".into()],
                (None, _) => argument.before.clone(),
            })
    }

    #[test]
    fn arguments_flags_and_their_values() {
        let complete = |typed| command().complete(typed);
        assert_eq!(complete("n"), ["db/get names", "db/get nodes"]);
        assert_eq!(complete("nodes no"), ["db/get nodes nodes"]);
        assert_eq!(complete("--delete r"), ["db/get --delete routes"]);
        assert_eq!(complete("--index in"), ["db/get --index index-1"]);
        assert_eq!(complete("nodes --index="), ["db/get nodes --index=index-1"]);
        assert_eq!(complete("nodes --"), ["db/get nodes --delete", "db/get nodes --index"]);
        assert_eq!(complete("--d"), ["db/get --delete"]);
        assert_eq!(complete("x"), [""; 0]);
    }
}
