//! Commands that create and change texts and variables.

use anyhow::{Context, bail, ensure};

use crate::command::{Run, on_state};
use crate::state::State;
use hive_command::{Call, Command, Flag, Output, whole_text};

pub(super) fn commands() -> Vec<Command<Run>> {
    vec![
        on_state("echo", "display a line of text", echo).takes("string..."),
        on_state("env", "set or log the values of environment variables", env)
            .takes("[key[=value]...]")
            .detail("Without arguments, all variables are printed.")
            .flag(Flag::switch("from-stdout", "set the named variables from the stdout buffer, trimmed")),
        on_state("replace", "replace strings in a file", replace)
            .takes("[old new]... file")
            .detail("old and new are unquoted as Go's quoted strings are: \\n, \\t, \\\"."),
        on_state("sed", "substitute strings in a file with a regexp", sed)
            .takes("regexp replacement file")
            .detail("Each line is changed by itself; $1 and ${1} are the groups.")
            .regexp(),
    ]
}

async fn echo(_: State, call: Call) -> anyhow::Result<Output> {
    Ok(Output::text(call.args.join(" ") + "\n"))
}

async fn env(state: State, call: Call) -> anyhow::Result<Output> {
    if call.flags.is_on("from-stdout") {
        let stdout = state.stdout();
        let value = String::from_utf8_lossy(&stdout);
        for name in &call.args {
            ensure!(!name.contains('='), "with --from-stdout, {name} is no name of a variable");
            state.set(name, value.trim_matches([' ', '\t', '\r', '\n']));
        }
        return Ok(Output::none());
    }
    if call.args.is_empty() {
        let all = state.variables();
        return Ok(Output::text(
            all.iter().map(|(name, value)| format!("{name}={value}\n")).collect::<String>(),
        ));
    }
    let mut shown = String::new();
    for arg in &call.args {
        match arg.split_once('=') {
            Some((name, value)) => state.set(name, value),
            None => shown.push_str(&format!("{arg}={}\n", state.variable(arg))),
        }
    }
    Ok(if shown.is_empty() { Output::none() } else { Output::text(shown) })
}

async fn replace(state: State, call: Call) -> anyhow::Result<Output> {
    let Some((name, pairs)) = call.at_least(1)?.split_last() else { bail!("no file") };
    ensure!(pairs.len() % 2 == 0, "takes pairs of old and new, then a file");
    let mut unquoted = vec![];
    for pair in pairs.chunks_exact(2) {
        let [old, new] = [&pair[0], &pair[1]]
            .map(|text| unquote(text).with_context(|| format!("\"{text}\" is no quoted string of Go")));
        unquoted.push((old?, new?));
    }
    let text = state.read(name)?;
    state.write(name, replaced(&text, &unquoted))?;
    Ok(Output::none())
}

/// Replaces from left to right; of several matches at one position the first pair takes effect.
fn replaced(text: &[u8], pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut at, mut after_empty) = (vec![], 0, false);
    while at <= text.len() {
        let rest = &text[at..];
        let fits = |(old, _): &&(Vec<u8>, Vec<u8>)| rest.starts_with(old) && !(old.is_empty() && after_empty);
        match pairs.iter().find(fits) {
            Some((old, new)) => {
                out.extend_from_slice(new);
                at += old.len();
                after_empty = old.is_empty();
            }
            None => {
                out.extend(rest.first());
                at += 1;
                after_empty = false;
            }
        }
    }
    out
}

/// Returns the content of a quoted Go string.
fn unquote(text: &str) -> Option<Vec<u8>> {
    let mut out = vec![];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            if matches!(c, '"' | '\n') {
                return None;
            }
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let escape = chars.next()?;
        let (length, radix) = match escape {
            'x' => (2, 16),
            'u' => (4, 16),
            'U' => (8, 16),
            '0'..='7' => (2, 8),
            _ => (0, 0),
        };
        if length == 0 {
            out.push(match escape {
                'a' => 7,
                'b' => 8,
                't' => b'\t',
                'n' => b'\n',
                'v' => 11,
                'f' => 12,
                'r' => b'\r',
                '\\' | '"' => escape as u8,
                _ => return None,
            });
            continue;
        }
        let mut value = if radix == 8 { escape.to_digit(8)? } else { 0 };
        for _ in 0..length {
            value = value.checked_mul(radix)?.checked_add(chars.next()?.to_digit(radix)?)?;
        }
        match escape {
            'u' | 'U' => out.extend_from_slice(char::from_u32(value)?.encode_utf8(&mut [0; 4]).as_bytes()),
            _ => out.push(u8::try_from(value).ok()?),
        }
    }
    Some(out)
}

async fn sed(state: State, call: Call) -> anyhow::Result<Output> {
    let [expression, replacement, name] = call.exactly()?;
    let expression = whole_text(expression)?;
    let text = state.read(name)?;
    let lines = text.split(|byte| *byte == b'\n');
    let changed: Vec<_> = lines.map(|line| expression.replace_all(line, replacement.as_bytes())).collect();
    state.write(name, changed.join(&b'\n'))?;
    Ok(Output::none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_replaced_in_one_pass() {
        let pairs = |list: &[(&str, &str)]| -> Vec<(Vec<u8>, Vec<u8>)> {
            list.iter().map(|(old, new)| (old.as_bytes().to_vec(), new.as_bytes().to_vec())).collect()
        };
        assert_eq!(replaced(b"abba", &pairs(&[("a", "b"), ("b", "a")])), b"baab");
        assert_eq!(replaced(b"aab", &pairs(&[("a", "1"), ("aa", "2")])), b"11b");
        assert_eq!(replaced(b"ab", &pairs(&[("", "-")])), b"-a-b-");
        assert_eq!(replaced(b"ab", &[]), b"ab");
    }

    #[test]
    fn strings_are_unquoted_as_in_go() {
        let text = |quoted: &str| unquote(quoted).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert_eq!(text(r#"a\n\t\"\\\x41\101\u00e9"#).as_deref(), Some("a\n\t\"\\AAé"));
        for wrong in ["\"", r"\q", r"\", r"\x4", r"\'", r"\ud800", r"\777"] {
            assert_eq!(text(wrong), None, "{wrong}");
        }
    }
}
