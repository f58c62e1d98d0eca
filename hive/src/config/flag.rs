//! The declared options of a hive.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::error::ConfigError;
use super::kind::{Form, Kind};
use super::value::Parsed;
use crate::error::{GraphError, Site};

/// One option as a configuration struct declares it. [`Flag::new`] returns one without properties, which its fields set.
#[derive(Clone)]
#[non_exhaustive]
pub struct Flag {
    /// Its name, in lower case with dashes.
    pub name: &'static str,
    /// The letter of its short form on the command line: `-f`.
    pub short: Option<char>,
    /// Its type.
    pub kind: Kind,
    /// A description of valid values, if they are a subset of those of its kind.
    pub expected: Option<&'static str>,
    /// Its default, as it would be written in a file.
    pub default: String,
    /// The purpose.
    pub help: &'static str,
    /// The unit of its value, if the type does not imply it.
    pub unit: Option<&'static str>,
    /// Whether the help text omits it.
    pub hidden: bool,
    /// Whether only files and folders may set it.
    pub file_only: bool,
    /// Old names that files and folders may use.
    pub aliases: &'static [&'static str],
    /// The heading of the help text that lists it.
    pub group: Option<&'static str>,
    /// The replacement, if it is deprecated.
    pub deprecated: Option<&'static str>,
    /// Whether a change takes effect while the program runs, rather than at the next start.
    pub live: bool,
    /// Whether its value is never shown.
    pub secret: bool,
    /// Whether occurrences on the command line are joined by commas, as for lists and maps.
    pub joins: bool,
    /// Checks constraints that the type does not express.
    pub check: fn(&Parsed<'_>) -> Result<(), String>,
}

impl Flag {
    /// Returns an option of this type, checked by this function; its default is empty.
    pub fn new(name: &'static str, kind: Kind, check: fn(&Parsed<'_>) -> Result<(), String>) -> Self {
        Flag {
            name,
            short: None,
            kind,
            expected: None,
            default: String::new(),
            help: "",
            unit: None,
            hidden: false,
            file_only: false,
            aliases: &[],
            group: None,
            deprecated: None,
            live: false,
            secret: false,
            joins: false,
            check,
        }
    }
}

/// An option that another agent knows and this one accepts without using it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Foreign {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: Kind,
    /// Its default, as it would be written in a file; empty for the zero value of its type.
    pub default: String,
    /// Whether only files and folders may set it.
    pub file_only: bool,
}

impl Foreign {
    /// Returns an option of this type whose default is zero.
    pub fn new(name: impl Into<String>, kind: Kind) -> Self {
        Foreign { name: name.into(), kind, default: String::new(), file_only: false }
    }

    /// Sets the default, as it would be written in a file.
    #[must_use]
    pub fn with_default(self, default: impl Into<String>) -> Self {
        Foreign { default: default.into(), ..self }
    }

    /// Sets whether only files and folders may set it.
    #[must_use]
    pub fn with_file_only(self, file_only: bool) -> Self {
        Foreign { file_only, ..self }
    }
}

/// Options that are read before all others, because they name the sources of the others.
pub(crate) const CONFIG_FILE: &str = "config";
pub(crate) const CONFIG_DIR: &str = "config-dir";

/// All options that a hive knows.
#[derive(Default)]
pub(crate) struct Schema {
    pub(crate) flags: BTreeMap<&'static str, Declared>,
    aliases: HashMap<&'static str, &'static str>,
    shorts: BTreeMap<char, &'static str>,
    pub(crate) foreign: Arc<BTreeMap<String, Foreign>>,
}

pub(crate) struct Declared {
    pub(crate) flag: Flag,
    pub(crate) site: Site,
}

/// An option that a key names.
#[derive(Clone, Copy)]
pub(crate) enum Known<'a> {
    Declared(&'a Flag),
    Foreign(&'a Foreign),
}

impl<'a> Known<'a> {
    pub(crate) fn name(&self) -> &'a str {
        match self {
            Known::Declared(flag) => flag.name,
            Known::Foreign(option) => &option.name,
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Known::Declared(flag) => flag.kind,
            Known::Foreign(option) => option.kind,
        }
    }

    /// Returns a description of valid values.
    pub(crate) fn expected(&self) -> String {
        match self {
            Known::Declared(Flag { expected: Some(expected), .. }) => (*expected).to_owned(),
            _ => self.kind().expected(),
        }
    }

    /// Whether only files and folders may set it.
    pub(crate) fn is_file_only(&self) -> bool {
        match self {
            Known::Declared(flag) => flag.file_only,
            Known::Foreign(option) => option.file_only,
        }
    }

    /// Whether its value is never shown.
    pub(crate) fn is_secret(&self) -> bool {
        matches!(self, Known::Declared(flag) if flag.secret)
    }

    /// Whether occurrences on the command line are joined.
    pub(crate) fn joins(&self) -> bool {
        let of_kind = matches!(self.kind(), Kind::Strings | Kind::Map);
        of_kind || matches!(self, Known::Declared(flag) if flag.joins)
    }

    /// Returns its default, as it would be written in a file.
    pub(crate) fn default(&self) -> String {
        let (kind, default) = match self {
            Known::Declared(flag) => (flag.kind, &flag.default),
            Known::Foreign(option) => (option.kind, &option.default),
        };
        let raw = if default.is_empty() { kind.zero() } else { default.as_str() };
        kind.parse(raw, Form::Other).map_or_else(|_| default.clone(), |value| kind.render(&value))
    }

    /// Reads and checks a raw value.
    pub(crate) fn parse(&self, raw: &str, form: Form) -> Result<figment::value::Value, Option<String>> {
        let value = self.kind().parse(raw, form)?;
        if let Known::Declared(flag) = self {
            (flag.check)(&Parsed(&value)).map_err(|detail| Some(detail).filter(|d| !d.is_empty()))?;
        }
        Ok(value)
    }
}

impl Schema {
    /// Adds an option; an error is one of the graph, since the program causes it, not its user.
    pub(crate) fn declare(&mut self, flag: Flag, site: &Site) -> Result<(), GraphError> {
        if let Some(first) = self.flags.get(flag.name) {
            let (first, second) = (first.site.clone(), site.clone());
            return Err(GraphError::DuplicateFlag { flag: flag.name.to_owned(), first, second });
        }
        let bad = |detail: Option<String>| GraphError::BadDefault {
            flag: flag.name.to_owned(),
            reason: format!(
                "\"{}\" is not {}{}",
                flag.default,
                Known::Declared(&flag).expected(),
                detail.map(|d| format!(" ({d})")).unwrap_or_default()
            ),
            site: site.clone(),
        };
        Known::Declared(&flag).parse(&flag.default, Form::Other).map_err(bad)?;
        if let Some(short) = flag.short
            && let Some(first) = self.shorts.insert(short, flag.name)
        {
            let (first, second) = (self.flags[first].site.clone(), site.clone());
            return Err(GraphError::DuplicateFlag { flag: format!("-{short}"), first, second });
        }
        self.aliases.extend(flag.aliases.iter().map(|alias| (*alias, flag.name)));
        self.flags.insert(flag.name, Declared { flag, site: site.clone() });
        Ok(())
    }

    /// Finds an option by its name in lower case.
    pub(crate) fn find(&self, name: &str) -> Option<Known<'_>> {
        if let Some(declared) = self.flags.get(name) {
            return Some(Known::Declared(&declared.flag));
        }
        self.foreign.get(name).map(Known::Foreign)
    }

    /// Finds an option by the letter of its short form.
    pub(crate) fn find_short(&self, letter: &str) -> Option<Known<'_>> {
        let mut chars = letter.chars();
        let (Some(letter), None) = (chars.next(), chars.next()) else { return None };
        self.find(self.shorts.get(&letter)?)
    }

    /// Finds an option by its name or an old one.
    pub(crate) fn find_with_aliases(&self, name: &str) -> Option<Known<'_>> {
        let name = self.aliases.get(name).copied().unwrap_or(name);
        self.find(name)
    }

    /// Returns the declared or accepted name that is nearest to an unknown one.
    pub(crate) fn nearest(&self, name: &str) -> Option<String> {
        let names = self.flags.keys().copied().chain(self.foreign.keys().map(String::as_str));
        crate::hints::nearest(name, names).map(str::to_owned)
    }

    pub(crate) fn unknown_flag(&self, name: &str) -> ConfigError {
        ConfigError::UnknownFlag { name: name.to_owned(), nearest: self.nearest(name) }
    }

    /// Returns the help text: every option that is not hidden, with type, default, unit and purpose; options with a
    /// group follow the others, under the heading of their group.
    pub(crate) fn usage(&self) -> String {
        let shown = self.flags.values().map(|d| &d.flag).filter(|f| !f.hidden && !f.file_only);
        let rows: Vec<(String, &Flag)> = shown.map(|f| (f.written(), f)).collect();
        let width = rows.iter().map(|(left, _)| left.len()).max().unwrap_or(0);
        let mut groups: BTreeMap<Option<&str>, String> = BTreeMap::new();
        for (left, flag) in rows {
            let line = format!("  {left:width$}   {}", flag.described());
            let lines = groups.entry(flag.group).or_default();
            lines.push_str(line.trim_end());
            lines.push('\n');
        }
        let part = |(group, lines): (Option<&str>, String)| match group {
            Some(group) => format!("\n{group}:\n{lines}"),
            None => lines,
        };
        groups.into_iter().map(part).collect()
    }
}

impl Flag {
    /// Returns the syntax: `-f, --force bool`.
    fn written(&self) -> String {
        let short = self.short.map(|letter| format!("-{letter}, ")).unwrap_or_default();
        format!("{short}--{} {}", self.name, self.kind)
    }

    /// Returns the help text that follows name and type.
    fn described(&self) -> String {
        let unit = self.unit.map(|unit| format!(" [{unit}]")).unwrap_or_default();
        let default = Some(&self.default).filter(|default| !default.is_empty() && !self.secret);
        let notes = [
            default.map(|default| format!("default {default}")),
            self.live.then(|| "can be changed while running".to_owned()),
            self.deprecated.map(|instead| format!("deprecated: {instead}")),
        ];
        let notes: Vec<String> = notes.into_iter().flatten().collect();
        let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
        let help = self.help.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("{help}{unit}{notes}")
    }
}
