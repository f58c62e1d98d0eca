//! The command line: `--name=value`, `--name value`, `--switch`, `-s`, and positional words.

use super::error::ConfigError;
use super::flag::{Known, Schema};
use super::kind::Kind;

/// The arguments of the command line apart from options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arguments {
    /// The positional words, in order: subcommands and their operands.
    pub words: Vec<String>,
    /// Whether `--help` or `-h` was among the flags.
    pub help: bool,
    /// Whether `--version` was among the flags.
    pub version: bool,
}

/// A flag with the text of its value.
pub(crate) type Given = (String, String);

/// Splits a command line; repeated lists and maps are joined, otherwise the last occurrence takes effect.
pub(crate) fn parse(
    args: &[String],
    schema: &Schema,
    errors: &mut Vec<ConfigError>,
) -> (Arguments, Vec<Given>) {
    let (mut arguments, mut given) = (Arguments::default(), Vec::<Given>::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let (is_short, flag) = match (arg.strip_prefix("--"), arg.strip_prefix('-')) {
            (Some(""), _) => {
                arguments.words.extend(args.by_ref().cloned());
                break;
            }
            (Some(flag), _) => (false, flag),
            (None, Some(letter)) if !letter.is_empty() => (true, letter),
            (None, _) => {
                arguments.words.push(arg.clone());
                continue;
            }
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (flag, None),
        };
        // Checked before options: a shared folder of options may contain these two keys as well.
        match name {
            "help" if !is_short => {
                arguments.help = true;
                continue;
            }
            "h" if is_short && value.is_none() => {
                arguments.help = true;
                continue;
            }
            "version" if !is_short => {
                arguments.version = true;
                continue;
            }
            _ => {}
        }
        let known = if is_short { schema.find_short(name) } else { schema.find(name) };
        let Some(known) = known.filter(|known| !known.is_file_only()) else {
            errors.push(match is_short {
                true => ConfigError::UnknownShorthand { word: arg.clone() },
                false => schema.unknown_flag(name),
            });
            continue;
        };
        let value = match (value, known.kind()) {
            (Some(value), _) => value,
            (None, Kind::Bool) => "true".to_owned(),
            (None, _) => match args.next() {
                Some(value) => value.clone(),
                None => {
                    errors.push(ConfigError::NoArgument { name: known.name().to_owned() });
                    continue;
                }
            },
        };
        give(&mut given, known, value);
    }
    (arguments, given)
}

fn give(given: &mut Vec<Given>, known: Known<'_>, value: String) {
    match given.iter_mut().find(|(name, _)| name == known.name()) {
        Some((_, first)) if known.joins() && !first.is_empty() => {
            first.push(',');
            first.push_str(&value);
        }
        Some((_, first)) => *first = value,
        None => given.push((known.name().to_owned(), value)),
    }
}
