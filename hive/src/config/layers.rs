//! From raw sources to settings: parsed by declared type, then layered.

use std::collections::HashMap;
use std::path::PathBuf;

use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::args::{self, Arguments};
use super::error::{BadValue, ConfigError};
use super::flag::{CONFIG_DIR, CONFIG_FILE, Known, Schema};
use super::kind::Form;
use super::observed::{Said, What};
use super::settings::{Renamed, SECRET, Setting, Settings, Source, Unknown};
use super::supplied::Supplied;
#[cfg(feature = "files")]
use super::{dir, file};

/// Where a hive reads its options.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    pub(crate) args: Vec<String>,
    pub(crate) env_prefix: String,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) files: bool,
    /// Candidate configuration files: the first that exists is read if no other one is named.
    pub(crate) usual_files: Vec<PathBuf>,
    pub(crate) program: Vec<(String, String)>,
    pub(crate) refuse_unknown: Vec<Origin>,
}

/// Kinds of sources that accept unknown keys unless the program refuses them. The command line never accepts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The configuration file and the folder.
    Files,
    /// Variables with the prefix whose names resemble those of options.
    Environment,
}

/// One layer: the values of one source, and the origin of each.
struct Layer {
    name: &'static str,
    values: Dict,
    places: HashMap<String, Source>,
}

impl Layer {
    fn new(name: &'static str) -> Self {
        Layer { name, values: Dict::new(), places: HashMap::new() }
    }
}

impl Provider for &Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name)
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Ok(Profile::Default.collect(self.values.clone()))
    }
}

/// The values of all sources.
pub(crate) struct Loaded {
    pub(crate) settings: Settings,
    pub(crate) arguments: Arguments,
    pub(crate) errors: Vec<ConfigError>,
}

impl Sources {
    /// Reads all sources. Errors are collected; an option with an error keeps the value of the layers below.
    pub(crate) fn load(&self, schema: &Schema, supplied: &[Supplied]) -> Loaded {
        let mut loader = Loader {
            schema,
            refused: &self.refuse_unknown,
            errors: vec![],
            unknown: vec![],
            renamed: vec![],
            said: vec![],
        };
        let (arguments, given) = args::parse(&self.args, schema, &mut loader.errors);

        let mut defaults = Layer::new("defaults");
        for declared in schema.flags.values() {
            loader.put(
                &mut defaults,
                Known::Declared(&declared.flag),
                &declared.flag.default,
                Source::Default,
            );
        }
        let mut flags = Layer::new("command line");
        for (name, value) in &given {
            loader.named(&mut flags, name, value, Source::Flag);
        }
        let mut program = Layer::new("program");
        for (name, value) in &self.program {
            loader.named(&mut program, name, value, Source::Program);
        }
        let env = self.environment(&mut loader);
        let mut layers = vec![defaults];
        #[cfg(feature = "files")]
        if self.files {
            let path = |name: &str| {
                let of = |layer: &Layer| layer.values.get(name).and_then(|v| v.as_str()).map(str::to_owned);
                let path = of(&program).or_else(|| of(&flags)).or_else(|| of(&env));
                path.filter(|path| !path.is_empty()).map(PathBuf::from)
            };
            let usual = || self.usual_files.iter().find(|path| path.is_file()).cloned();
            layers.extend(loader.files(path(CONFIG_FILE).or_else(usual), path(CONFIG_DIR)));
        }
        let supplied = supplied.iter().map(|Supplied { key, value, source }| {
            (key.to_ascii_lowercase(), value.trim().to_owned(), Source::Supplied(source.clone()))
        });
        layers.push(loader.entries(Layer::new("supplied"), supplied));
        layers.extend([env, flags, program]);

        let Loader { errors, unknown, renamed, said, .. } = loader;
        let mut settings = combine(schema, &layers, unknown, renamed);
        settings.said = said;
        Loaded { settings, arguments, errors }
    }

    /// Reads environment variables with the prefix. Empty ones count as not set; unknown ones are ignored unless they
    /// are nearly an option's name, because other programs use the prefix, too.
    fn environment(&self, loader: &mut Loader<'_>) -> Layer {
        let mut layer = Layer::new("environment");
        for (variable, value) in &self.env {
            let Some(name) = variable.strip_prefix(&self.env_prefix).filter(|_| !self.env_prefix.is_empty())
            else {
                continue;
            };
            if value.is_empty() {
                continue;
            }
            let (name, source) =
                (name.to_ascii_lowercase().replace('_', "-"), Source::Environment(variable.clone()));
            match loader.schema.find(&name) {
                Some(known) if known.is_file_only() => {}
                Some(known) => loader.put(&mut layer, known, value, source),
                None if name.len() > 6 => {
                    let nearest = loader.schema.nearest(&name);
                    if nearest.is_some() {
                        loader.stranger(
                            Origin::Environment,
                            Unknown { key: name, source, nearest, note: None },
                            value,
                        );
                    }
                }
                None => {}
            }
        }
        layer
    }
}

struct Loader<'a> {
    schema: &'a Schema,
    refused: &'a [Origin],
    errors: Vec<ConfigError>,
    unknown: Vec<Unknown>,
    renamed: Vec<Renamed>,
    said: Vec<Said>,
}

impl Loader<'_> {
    /// Records an unknown key. Its value is hidden if the nearest option is a secret, because it may be that option
    /// misspelt.
    fn stranger(&mut self, origin: Origin, unknown: Unknown, value: &str) {
        let nearest = unknown.nearest.clone();
        let secret =
            nearest.as_ref().and_then(|name| self.schema.find(name)).is_some_and(|known| known.is_secret());
        let text = if secret { SECRET.to_owned() } else { value.to_owned() };
        let (key, source) = (unknown.key.clone(), unknown.source.clone());
        self.said.push(Said { key, source, text, what: What::Unknown(nearest) });
        if self.refused.contains(&origin) {
            let Unknown { key, source, nearest, .. } = unknown;
            self.errors.push(ConfigError::UnknownKey { key, from: source, nearest });
        } else {
            self.unknown.push(unknown);
        }
    }

    /// Reports a key that names a source of options inside a file or folder: it has no effect there.
    fn misplaced(&mut self, key: String, text: String, source: Source) {
        const NOTE: &str = "it counts on the command line and in the environment only";
        let what = What::Wrong(NOTE.to_owned());
        self.said.push(Said { key: key.clone(), source: source.clone(), text, what });
        self.unknown.push(Unknown { key, source, nearest: None, note: Some(NOTE) });
    }

    fn named(&mut self, layer: &mut Layer, name: &str, raw: &str, source: Source) {
        match self.schema.find(name) {
            Some(known) => self.put(layer, known, raw, source),
            None if source == Source::Program => {
                let (key, nearest) = (name.to_owned(), self.schema.nearest(name));
                self.errors.push(ConfigError::UnknownKey { key, from: source, nearest });
            }
            None => self.errors.push(self.schema.unknown_flag(name)),
        }
    }

    fn put(&mut self, layer: &mut Layer, known: Known<'_>, raw: &str, source: Source) {
        let form = if source == Source::Flag { Form::Flag } else { Form::Other };
        let parsed = known.parse(raw, form);
        if source != Source::Default {
            self.said.push(said(known, raw, &source, &parsed));
        }
        match parsed {
            Ok(value) => {
                layer.values.insert(known.name().to_owned(), value);
                layer.places.insert(known.name().to_owned(), source);
            }
            Err(detail) => self.errors.push(ConfigError::BadValue(Box::new(BadValue {
                from: source,
                key: known.name().to_owned(),
                value: if known.is_secret() { SECRET.to_owned() } else { raw.to_owned() },
                expected: known.expected(),
                // The parser's error may quote the value.
                detail: detail.filter(|_| !known.is_secret()),
            }))),
        }
    }

    #[cfg(feature = "files")]
    /// Reads the configuration file if there is one, else the folder.
    fn files(&mut self, path: Option<PathBuf>, folder: Option<PathBuf>) -> Option<Layer> {
        let (layer, entries): (Layer, Vec<(String, String, Source)>) = match (path, folder) {
            (Some(path), _) => {
                let options = file::read(&path, &mut self.errors).into_iter();
                let entries = options.map(|(key, value)| (key, value, Source::File(path.clone())));
                (Layer::new("configuration file"), entries.collect())
            }
            (None, Some(folder)) => {
                let found = dir::read(&folder, &mut self.errors);
                let known = |key: &str| self.schema.find_with_aliases(key).is_some();
                for (key, path, note) in found.odd.into_iter().filter(|(key, ..)| known(key)) {
                    let source = Source::Directory(path);
                    self.unknown.push(Unknown { key, source, nearest: None, note: Some(note) });
                }
                let entries =
                    found.entries.into_iter().map(|(key, value, path)| (key, value, Source::Directory(path)));
                (Layer::new("configuration folder"), entries.collect())
            }
            (None, None) => return None,
        };
        Some(self.entries(layer, entries))
    }

    /// Converts keys in lower case with their values into a layer; reports unknown keys.
    fn entries(
        &mut self,
        mut layer: Layer,
        entries: impl IntoIterator<Item = (String, String, Source)>,
    ) -> Layer {
        for (key, value, source) in entries {
            if [CONFIG_FILE, CONFIG_DIR].contains(&key.as_str()) {
                self.misplaced(key, value, source);
                continue;
            }
            match self.schema.find_with_aliases(&key) {
                Some(known) => {
                    if known.name() != key {
                        let (key, source) = (key.clone(), source.clone());
                        self.renamed.push(Renamed { key, now: known.name().to_owned(), source });
                    }
                    self.put(&mut layer, known, &value, source);
                }
                None => {
                    let nearest = self.schema.nearest(&key);
                    self.stranger(Origin::Files, Unknown { key, source, nearest, note: None }, &value);
                }
            }
        }
        layer
    }
}

/// Records a source's value of a known option.
fn said(known: Known<'_>, raw: &str, source: &Source, parsed: &Result<Value, Option<String>>) -> Said {
    let shown = parsed.as_ref().map_or_else(|_| raw.to_owned(), |value| known.kind().render(value));
    let what = match (known, parsed) {
        (_, Err(detail)) => {
            let detail = detail.as_ref().filter(|_| !known.is_secret());
            let detail = detail.map(|detail| format!(" ({detail})")).unwrap_or_default();
            What::Wrong(format!("not {}{detail}", known.expected()))
        }
        (Known::Declared(_), Ok(value)) => What::Declared(value.clone()),
        (Known::Foreign(_), Ok(_)) => What::Foreign(shown != known.default()),
    };
    let text = if known.is_secret() { SECRET.to_owned() } else { shown };
    Said { key: known.name().to_owned(), source: source.clone(), text, what }
}

fn combine(schema: &Schema, layers: &[Layer], unknown: Vec<Unknown>, renamed: Vec<Renamed>) -> Settings {
    let figment = layers.iter().fold(Figment::new(), |figment, layer| figment.merge(layer));
    let values =
        figment.data().ok().and_then(|mut profiles| profiles.remove(&Profile::Default)).unwrap_or_default();
    let foreign = schema.foreign.clone();
    let mut settings = Settings { unknown, renamed, foreign, ..Settings::default() };
    for (key, parsed) in values {
        let layer = figment.get_metadata(parsed.tag()).map(|metadata| metadata.name.as_ref());
        let layer = layers.iter().find(|candidate| Some(candidate.name) == layer);
        let source = layer.and_then(|layer| layer.places.get(&key)).cloned().unwrap_or(Source::Default);
        let Some(known) = schema.find(&key) else { continue };
        let kind = known.kind();
        let (value, default) = (kind.render(&parsed), known.default());
        let is_default = value == default;
        let is_secret = known.is_secret();
        let [value, default] = match is_secret {
            true => [SECRET.to_owned(), SECRET.to_owned()],
            false => [value, default],
        };
        let (deprecated, live) = match known {
            Known::Declared(flag) => (flag.deprecated, flag.live),
            Known::Foreign(_) => (None, false),
        };
        let setting = Setting {
            key: key.clone(),
            value,
            default,
            kind,
            live,
            source,
            deprecated,
            is_default,
            is_secret,
            parsed,
        };
        match known {
            Known::Declared(_) => {
                settings.declared.insert(key, setting);
            }
            Known::Foreign(..) => settings.unused.push(setting),
        }
    }
    settings
}
