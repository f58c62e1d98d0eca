//! From raw sources to settings: parsed by declared type, then layered.

use std::collections::HashMap;
use std::path::PathBuf;

use figment::value::{Dict, Map};
use figment::{Figment, Metadata, Profile, Provider};

use super::args::{self, Arguments};
use super::error::{BadValue, ConfigError};
use super::flag::{CONFIG_DIR, CONFIG_FILE, Known, Schema};
use super::kind::Form;
use super::settings::{Setting, Settings, Source, Unknown};
use super::{dir, file};

/// Where a hive reads its options.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    pub(crate) args: Vec<String>,
    pub(crate) env_prefix: String,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) files: bool,
    pub(crate) program: Vec<(String, String)>,
}

/// One layer: the values of one source, and the place of each.
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

/// What the sources say.
pub(crate) struct Loaded {
    pub(crate) settings: Settings,
    pub(crate) arguments: Arguments,
    pub(crate) errors: Vec<ConfigError>,
}

impl Sources {
    /// Reads all sources. Faults are collected; an option with a fault keeps the value of the layers below.
    pub(crate) fn load(&self, schema: &Schema) -> Loaded {
        let mut loader = Loader { schema, errors: vec![], unknown: vec![] };
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
        if self.files {
            let path = |name: &str| {
                let of = |layer: &Layer| layer.values.get(name).and_then(|v| v.as_str()).map(str::to_owned);
                let path = of(&program).or_else(|| of(&flags)).or_else(|| of(&env));
                path.filter(|path| !path.is_empty()).map(PathBuf::from)
            };
            layers.extend(loader.files(path(CONFIG_FILE), path(CONFIG_DIR)));
        }
        layers.extend([env, flags, program]);

        let Loader { errors, unknown, .. } = loader;
        let settings = combine(schema, &layers, unknown);
        Loaded { settings, arguments, errors }
    }

    /// Environment variables with the prefix. Empty ones count as not set; those that name nothing known are left
    /// alone unless they are nearly an option's name, because other programs use the prefix, too.
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
                    loader.unknown.extend(nearest.map(|n| Unknown { key: name, source, nearest: Some(n) }));
                }
                None => {}
            }
        }
        layer
    }
}

struct Loader<'a> {
    schema: &'a Schema,
    errors: Vec<ConfigError>,
    unknown: Vec<Unknown>,
}

impl Loader<'_> {
    fn named(&mut self, layer: &mut Layer, name: &str, raw: &str, source: Source) {
        match self.schema.find(name) {
            Some(known) => self.put(layer, known, raw, source),
            None => self.errors.push(self.schema.unknown_flag(name)),
        }
    }

    fn put(&mut self, layer: &mut Layer, known: Known<'_>, raw: &str, source: Source) {
        let form = if source == Source::Flag { Form::Flag } else { Form::Other };
        match known.parse(raw, form) {
            Ok(value) => {
                layer.values.insert(known.name().to_owned(), value);
                layer.places.insert(known.name().to_owned(), source);
            }
            Err(detail) => self.errors.push(ConfigError::BadValue(Box::new(BadValue {
                from: source,
                key: known.name().to_owned(),
                value: raw.to_owned(),
                expected: known.kind().expected(),
                detail,
            }))),
        }
    }

    /// The configuration file if there is one, else the folder.
    fn files(&mut self, path: Option<PathBuf>, folder: Option<PathBuf>) -> Option<Layer> {
        let (mut layer, entries): (Layer, Vec<(String, String, Source)>) = match (path, folder) {
            (Some(path), _) => {
                let options = file::read(&path, &mut self.errors).into_iter();
                let entries = options.map(|(key, value)| (key, value, Source::File(path.clone())));
                (Layer::new("configuration file"), entries.collect())
            }
            (None, Some(folder)) => {
                let options = dir::read(&folder, &mut self.errors).into_iter();
                let entries = options.map(|(key, value, path)| (key, value, Source::Directory(path)));
                (Layer::new("configuration folder"), entries.collect())
            }
            (None, None) => return None,
        };
        for (key, value, source) in entries {
            match self.schema.find_with_aliases(&key) {
                Some(known) => self.put(&mut layer, known, &value, source),
                None => {
                    let nearest = self.schema.nearest(&key);
                    self.unknown.push(Unknown { key, source, nearest });
                }
            }
        }
        Some(layer)
    }
}

fn combine(schema: &Schema, layers: &[Layer], unknown: Vec<Unknown>) -> Settings {
    let figment = layers.iter().fold(Figment::new(), |figment, layer| figment.merge(layer));
    let values =
        figment.data().ok().and_then(|mut profiles| profiles.remove(&Profile::Default)).unwrap_or_default();
    let mut settings = Settings { unknown, ..Settings::default() };
    for (key, parsed) in values {
        let layer = figment.get_metadata(parsed.tag()).map(|metadata| metadata.name.as_ref());
        let layer = layers.iter().find(|candidate| Some(candidate.name) == layer);
        let source = layer.and_then(|layer| layer.places.get(&key)).cloned().unwrap_or(Source::Default);
        let Some(known) = schema.find(&key) else { continue };
        let kind = known.kind();
        let (value, default) = (kind.render(&parsed), known.default());
        let setting = Setting { value, default, key: key.clone(), kind, source, parsed };
        match known {
            Known::Declared(_) => {
                settings.declared.insert(key, setting);
            }
            Known::Foreign(..) => settings.unused.push(setting),
        }
    }
    settings.figment = figment;
    settings
}
