//! Inputs: files of values, and ConfigMaps as folders, as objects or as plain maps of options.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

use crate::Error;

/// The name of the object that has the agent's options.
const CONFIG_MAP: &str = "cilium-config";

/// The data of a ConfigMap and how it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigMapSource {
    /// Keys with their values.
    pub data: BTreeMap<String, String>,
}

impl ConfigMapSource {
    /// Reads a folder as Kubernetes mounts it, or a file: the object, a list or stream of objects of which one is the
    /// ConfigMap `cilium-config` (as `helm template` prints it), or a map of options. `-` is the standard input.
    pub fn read(path: &Path) -> Result<ConfigMapSource, Error> {
        let data = if path.is_dir() { folder(path)? } else { of_documents(path, &documents(path)?)? };
        Ok(ConfigMapSource { data })
    }
}

/// Reads a file of chart values; an empty one has none. `-` is the standard input.
pub fn read_values(path: &Path) -> Result<Value, Error> {
    let mut documents = documents(path)?;
    match documents.len() {
        0 => Ok(Value::Object(serde_json::Map::new())),
        1 if documents[0].is_object() => Ok(documents.remove(0)),
        1 => Err(Error::content(path, "is not a map of values; give the file of helm's option --values")),
        count => Err(Error::content(path, format!("has {count} documents; give one file of values"))),
    }
}

fn text(path: &Path) -> Result<Vec<u8>, Error> {
    if path == Path::new("-") {
        let mut content = Vec::new();
        std::io::stdin().lock().read_to_end(&mut content).map_err(Error::file(path))?;
        return Ok(content);
    }
    std::fs::read(path).map_err(Error::file(path))
}

fn documents(path: &Path) -> Result<Vec<Value>, Error> {
    let parsed = k8s_types::documents_of_bytes(&text(path)?).into_iter();
    let parsed = parsed.map(|document| document.map(|document| document.value));
    parsed.map(|value| value.map_err(|broken| Error::content(path, broken.to_string()))).collect()
}

/// Returns the options of a folder; links of the atomic writer and folders are skipped, as by the agent.
fn folder(path: &Path) -> Result<BTreeMap<String, String>, Error> {
    let mut data = BTreeMap::new();
    for entry in std::fs::read_dir(path).map_err(Error::file(path))? {
        let file = entry.map_err(Error::file(path))?.path();
        let Some(key) = file.file_name().and_then(|name| name.to_str()) else {
            return Err(Error::content(&file, "its name is not UTF-8; rename or remove it"));
        };
        if !file.is_dir() {
            let value = std::fs::read_to_string(&file).map_err(Error::file(&file))?;
            data.insert(key.to_owned(), value);
        }
    }
    Ok(data)
}

fn of_documents(path: &Path, documents: &[Value]) -> Result<BTreeMap<String, String>, Error> {
    let objects: Vec<&Value> = documents
        .iter()
        .flat_map(|document| match document.get("items").and_then(Value::as_array) {
            Some(items) => items.iter().collect(),
            None => vec![document],
        })
        .collect();
    let maps: Vec<&Value> = objects.iter().copied().filter(|object| object["kind"] == "ConfigMap").collect();
    let named = maps.iter().find(|map| map["metadata"]["name"] == CONFIG_MAP);
    let data = match (named, maps.as_slice(), objects.as_slice()) {
        (Some(map), _, _) | (None, [map], _) => map.get("data"),
        (None, [], [options]) if options.get("kind").is_none() => Some(*options),
        (None, [], _) => {
            return Err(Error::content(path, format!("has no ConfigMap; give the object {CONFIG_MAP}")));
        }
        (None, maps, _) => {
            let reason = format!("has {} ConfigMaps and none is called {CONFIG_MAP}; give one", maps.len());
            return Err(Error::content(path, reason));
        }
    };
    let Some(data) = data.and_then(Value::as_object) else {
        return Err(Error::content(path, "has no map of options in data"));
    };
    Ok(data.iter().map(|(key, value)| (key.clone(), plain(value))).collect())
}

/// Returns a value as it is in a ConfigMap.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &str) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("input.yaml");
        std::fs::write(&file, content).unwrap();
        let source = ConfigMapSource::read(&file).map_err(|error| error.to_string())?;
        Ok(source.data.into_iter().map(|(key, value)| format!("{key}={value}")).collect())
    }

    #[test]
    fn a_config_map_has_many_forms() {
        let object = "kind: ConfigMap\nmetadata: {name: cilium-config}\ndata: {mtu: '9000', debug: 'true'}\n";
        let expected = Ok(vec!["debug=true".to_owned(), "mtu=9000".to_owned()]);
        assert_eq!(read(object), expected);
        assert_eq!(read("mtu: 9000\ndebug: true\n"), expected);
        let others = "kind: ConfigMap\nmetadata: {name: other}\ndata: {a: b}\n---\nkind: Service\n---\n";
        assert_eq!(read(&format!("{others}{object}")), expected);
        let list = "kind: List\nitems:\n- kind: ConfigMap\n  metadata: {name: mine}\n  data: {mtu: '9000', debug: 'true'}\n";
        assert_eq!(read(list), expected);

        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("..data_1")).unwrap();
        std::fs::write(folder.path().join("..data_1/mtu"), "9000\n").unwrap();
        std::os::unix::fs::symlink("..data_1", folder.path().join("..data")).unwrap();
        std::os::unix::fs::symlink("..data/mtu", folder.path().join("mtu")).unwrap();
        let source = ConfigMapSource::read(folder.path()).unwrap();
        assert_eq!(source.data, [("mtu".to_owned(), "9000\n".to_owned())].into());
    }

    #[test]
    fn other_content_is_refused_with_its_reason() {
        for (content, reason) in [
            ("kind: Service\n", "has no ConfigMap"),
            ("kind: ConfigMap\n---\nkind: ConfigMap\n", "has 2 ConfigMaps and none is called cilium-config"),
            ("kind: ConfigMap\n", "has no map of options in data"),
            ("mtu: [\n", "line 2"),
        ] {
            let error = read(content).unwrap_err();
            assert!(error.contains(reason), "{content:?}: {error}");
        }
    }
}
