//! Options: read by the agent's hive from a folder, as the agent reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use hive::{ConfigError, Hive, HiveBuilder, HiveError, Setting};
use known_options::{features, is_of_operator};

use crate::Error;
use crate::report::{Finding, Outcome};

/// Whether all options of the agent are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// A whole configuration: combinations of options are judged as well.
    Complete,
    /// Only some options: a combination that others would make valid is no fault.
    Partial,
}

/// The judgement of options.
pub struct Judged {
    /// The findings, in order of the keys.
    pub findings: Vec<Finding>,
    /// The hive with all options that are not refused; nothing of it has run.
    pub hive: Hive,
}

impl fmt::Debug for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Judged").field("findings", &self.findings).finish_non_exhaustive()
    }
}

/// A program that reads the options.
#[derive(Clone, Copy)]
pub struct Program<'a> {
    /// Returns the builder of its hive, with its cells and known options, without sources.
    pub builder: &'a dyn Fn() -> HiveBuilder,
    /// Runs the constructors of a hive, which check some options and do no I/O, and drops it.
    pub construct: &'a dyn Fn(Hive) -> Result<(), HiveError>,
}

impl fmt::Debug for Program<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Program")
    }
}

/// Judges options by building a hive with them, and again without those that are at fault.
pub fn judge(data: &BTreeMap<String, String>, scope: Scope, program: Program<'_>) -> Result<Judged, Error> {
    let folder = tempfile::tempdir().map_err(Error::file(&std::env::temp_dir()))?;
    let mut refused: BTreeMap<String, String> = BTreeMap::new();
    for (key, value) in data {
        if !may_be_file(key) {
            refused.insert(key.clone(), "is no name of an option: remove it".to_owned());
            continue;
        }
        let path = folder.path().join(key);
        std::fs::write(&path, value).map_err(Error::file(&path))?;
    }
    let argument = format!("--config-dir={}", folder.path().display());
    let build = || (program.builder)().config_files().args([&argument]).build();
    let hive = loop {
        let (error, is_last) = match build() {
            Ok(hive) => match (program.construct)(hive) {
                Ok(()) => break build(),
                Err(error) => (error, true),
            },
            Err(error) => (error, false),
        };
        let mut removed = 0;
        for Fault { key, reason, is_combined } in faults(&error, data) {
            // A file's name may have capitals, which the agent ignores.
            for key in data.keys().filter(|given| given.eq_ignore_ascii_case(&key)) {
                removed += usize::from(std::fs::remove_file(folder.path().join(key)).is_ok());
                // Beside options that are not given, a combination may be valid.
                if !is_combined || scope == Scope::Complete {
                    refused.entry(key.clone()).or_insert_with(|| reason.clone());
                }
            }
        }
        match (removed, is_last) {
            (0, false) => return Err(Error::Hive(Box::new(error))),
            // The constructor lacks something of this machine, not an option.
            (0, true) => break build(),
            _ => {}
        }
    };
    let hive = hive.map_err(|error| Error::Hive(Box::new(error)))?;
    let findings = findings(data, &refused, &hive);
    Ok(Judged { findings, hive })
}

/// Whether a key can be a file of a mounted ConfigMap.
fn may_be_file(key: &str) -> bool {
    let inner = |c: u8| c.is_ascii_alphanumeric() || b"-._".contains(&c);
    !key.is_empty() && key.len() <= 253 && key != "." && !key.starts_with("..") && key.bytes().all(inner)
}

/// An option at fault.
struct Fault {
    key: String,
    reason: String,
    /// Whether the value is valid on its own.
    is_combined: bool,
}

fn faults(error: &HiveError, data: &BTreeMap<String, String>) -> Vec<Fault> {
    match error {
        HiveError::Config(errors) => errors.iter().flat_map(config_faults).collect(),
        HiveError::Construct { error, .. } => {
            let reason = format!("{error:#}");
            named(&reason, data.keys().map(String::as_str)).collect()
        }
        _ => vec![],
    }
}

fn config_faults(error: &ConfigError) -> Vec<Fault> {
    let single = |key: &str, reason: String| vec![Fault { key: key.to_owned(), reason, is_combined: false }];
    match error {
        ConfigError::BadValue(bad) => {
            let detail = bad.detail.as_ref().map(|detail| format!(" ({detail})")).unwrap_or_default();
            single(&bad.key, format!("is not {}{detail}: give that", bad.expected))
        }
        ConfigError::Unreadable { path, reason, .. } | ConfigError::BadFile { path, reason, .. } => {
            single(&file_name(path), reason.clone())
        }
        ConfigError::Invalid { reason, options, .. } => {
            let keys = options.iter().filter_map(|option| Some(option.split_once('=')?.0));
            let faults: Vec<Fault> = named(reason, keys.clone()).collect();
            match faults.is_empty() {
                true => keys.map(|key| fault(key, reason)).collect(),
                false => faults,
            }
        }
        _ => vec![],
    }
}

/// Returns the options that the text of a failed check names.
fn named<'a>(reason: &'a str, keys: impl Iterator<Item = &'a str>) -> impl Iterator<Item = Fault> {
    let words = reason.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let words: BTreeSet<&str> = words.map(|word| word.trim_start_matches('-')).collect();
    keys.filter(move |key| words.contains(key)).map(move |key| fault(key, reason))
}

fn fault(key: &str, reason: &str) -> Fault {
    let own = [format!("option {key}: "), format!("{key}: ")];
    match own.iter().find_map(|own| reason.strip_prefix(own.as_str())) {
        Some(rest) => Fault { key: key.to_owned(), reason: rest.to_owned(), is_combined: false },
        None => Fault { key: key.to_owned(), reason: reason.to_owned(), is_combined: true },
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn findings(
    data: &BTreeMap<String, String>,
    refused: &BTreeMap<String, String>,
    hive: &Hive,
) -> Vec<Finding> {
    let settings = hive.settings();
    let features = features();
    let known: BTreeMap<&str, &Setting> = settings.unused().iter().map(|s| (s.key.as_str(), s)).collect();
    let finding = |(key, value): (&String, &String)| {
        let lower = key.to_ascii_lowercase();
        let value = match settings.get(&lower).is_some_and(Setting::is_secret) {
            true => "(secret)".to_owned(),
            false => value.trim().to_owned(),
        };
        let (outcome, reason) = match refused.get(key) {
            Some(reason) => (Outcome::Refused, reason.clone()),
            None => accepted(&lower, settings, &known, &features),
        };
        Finding { key: key.clone(), value, outcome, reason }
    };
    data.iter().map(finding).collect()
}

/// Judges an option that the hive has accepted.
fn accepted(
    key: &str,
    settings: &hive::Settings,
    unused: &BTreeMap<&str, &Setting>,
    features: &BTreeMap<&'static str, &'static str>,
) -> (Outcome, String) {
    if let Some(renamed) = settings.renamed().iter().find(|renamed| renamed.key == key) {
        return (Outcome::Effective, format!("is called {} now", renamed.now));
    }
    if let Some(setting) = settings.get(key) {
        let reason = match (setting.deprecated, setting.is_default()) {
            (Some(instead), _) => format!("deprecated: use {instead}"),
            (None, true) => "is the default".to_owned(),
            (None, false) => String::new(),
        };
        return (Outcome::Effective, reason);
    }
    if is_of_operator(key) {
        return (Outcome::Effective, "is an option of the operator".to_owned());
    }
    if let Some(setting) = unused.get(key) {
        let feature = features.get(key).unwrap_or(&"other");
        let reason = match setting.is_default() {
            true => format!("is the default, and nothing of {feature} reads it"),
            false => format!("is not built: no cell of {feature} reads it"),
        };
        return (Outcome::Ignored, reason);
    }
    match settings.unknown().iter().find(|unknown| unknown.key == key) {
        Some(unknown) => {
            let nearest = unknown.nearest.as_ref().map(|nearest| format!("is {nearest} meant?"));
            let note = unknown.note.map(str::to_owned);
            (Outcome::Unknown, note.or(nearest).unwrap_or_else(|| "no program reads it".to_owned()))
        }
        // A partial configuration: the option is valid beside others.
        None if features.contains_key(key) => (Outcome::Ignored, "is not read".to_owned()),
        None => (Outcome::Unknown, "no program reads it".to_owned()),
    }
}
