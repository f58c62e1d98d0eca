//! Messages by their descriptors: resources of users as JSON, with any of Envoy's extensions inside.

use std::io::Read as _;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use flate2::read::GzDecoder;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, MessageDescriptor, ReflectMessage as _, Value};
use serde_json::Value as Json;

/// The descriptors of Envoy's API (v3), which `tools/envoy-descriptors` makes.
static ENVOY: &[u8] = include_bytes!("../descriptors.binpb.gz");
/// Those of Cilium's filters.
static CILIUM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cilium_filters.binpb"));
const ANY: &str = "google.protobuf.Any";
const TYPE: &str = "@type";
/// The depth of messages in each other, so that the stack suffices.
const MAX_DEPTH: usize = 64;

/// The types of messages that resources may contain.
#[derive(Debug)]
pub struct Types {
    pool: DescriptorPool,
    any: MessageDescriptor,
}

/// A resource that is not a message of its type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct InvalidJson {
    /// The path of the field, such as `filter_chains[0].filters[1].typed_config`.
    pub path: String,
    /// The fault, and the remedy.
    pub problem: String,
}

/// The descriptors cannot be read: a fault of the build.
#[derive(Debug, thiserror::Error)]
#[error("the descriptors of Envoy's messages cannot be read: {0}")]
pub struct BadDescriptors(#[source] Box<dyn std::error::Error + Send + Sync>);

impl Types {
    /// Returns the types. They are some megabytes, which are shared while a user holds them, and take about 30 ms to
    /// build.
    ///
    /// # Errors
    /// If the descriptors of this build are damaged.
    pub fn load() -> Result<Arc<Types>, BadDescriptors> {
        static SHARED: Mutex<Weak<Types>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(types) = shared.upgrade() {
            return Ok(types);
        }
        let types = Arc::new(Types::build().map_err(BadDescriptors)?);
        *shared = Arc::downgrade(&types);
        Ok(types)
    }

    fn build() -> Result<Types, Box<dyn std::error::Error + Send + Sync>> {
        let mut bytes = Vec::new();
        GzDecoder::new(ENVOY).read_to_end(&mut bytes)?;
        let mut pool = DescriptorPool::decode(&*bytes)?;
        pool.decode_file_descriptor_set(CILIUM)?;
        let any = pool.get_message_by_name(ANY).ok_or("google.protobuf.Any is missing")?;
        Ok(Types { pool, any })
    }

    /// Returns the descriptor of a type by its full name; `None` if there is no such type.
    #[must_use]
    pub fn descriptor(&self, name: &str) -> Option<MessageDescriptor> {
        self.pool.get_message_by_name(name)
    }

    /// Returns an empty message of a type; `None` if there is no such type.
    #[must_use]
    pub fn message(&self, name: &str) -> Option<DynamicMessage> {
        self.descriptor(name).map(DynamicMessage::new)
    }

    /// Returns the pool, for other formats.
    #[must_use]
    pub fn pool(&self) -> &DescriptorPool {
        &self.pool
    }

    /// Returns the message of a JSON object with `@type`, in the mapping of protobuf's specification; the names of the
    /// definitions are taken, too.
    ///
    /// # Errors
    /// With the path of a field that does not exist or has a wrong value, or of a type that is unknown.
    pub fn parse(&self, json: &Json) -> Result<DynamicMessage, InvalidJson> {
        let invalid = |path: &str, problem: String| InvalidJson { path: path.to_owned(), problem };
        if depth(json) > MAX_DEPTH {
            let problem = format!("is nested deeper than {MAX_DEPTH} levels");
            return Err(invalid("resource", problem));
        }
        let Json::Object(fields) = json else {
            return Err(invalid("resource", "is no object".to_owned()));
        };
        let descriptor = self.type_of(json).map_err(|problem| invalid(TYPE, problem))?;
        let mut fields = fields.clone();
        fields.remove(TYPE);
        let object = Json::Object(fields);
        DynamicMessage::deserialize(descriptor.clone(), &object).map_err(|error| {
            let mut path = String::new();
            let problem = self.locate(&descriptor, &object, &mut path).unwrap_or_else(|| error.to_string());
            invalid(if path.is_empty() { "resource" } else { path.trim_start_matches('.') }, problem)
        })
    }

    /// Returns the descriptor that `@type` names, or the fault.
    fn type_of(&self, json: &Json) -> Result<MessageDescriptor, String> {
        let Some(url) = json.get(TYPE).and_then(Json::as_str) else {
            return Err("is missing: name the type, such as \
                        type.googleapis.com/envoy.config.listener.v3.Listener"
                .to_owned());
        };
        let name = url.rsplit_once('/').map_or(url, |(_, name)| name);
        let unknown =
            || format!("{url:?} is no known type: use one of Envoy's API v3 or of Cilium's filters");
        self.descriptor(name).ok_or_else(unknown)
    }

    /// Returns the fault of a message that does not decode, and appends the path of it.
    fn locate(&self, descriptor: &MessageDescriptor, json: &Json, path: &mut String) -> Option<String> {
        let decodes = |descriptor: &MessageDescriptor, json: &Json| {
            DynamicMessage::deserialize(descriptor.clone(), json).map(drop).map_err(|error| error.to_string())
        };
        if descriptor.full_name() == ANY {
            let inner = match self.type_of(json) {
                Ok(inner) => inner,
                Err(problem) => {
                    path.push_str(".@type");
                    return Some(problem);
                }
            };
            let Json::Object(fields) = json else { return decodes(descriptor, json).err() };
            let mut fields = fields.clone();
            fields.remove(TYPE);
            if !inner.full_name().starts_with("google.protobuf.") {
                return self.locate(&inner, &Json::Object(fields), path);
            }
        }
        let fields = match json {
            Json::Object(fields) if !descriptor.full_name().starts_with("google.protobuf.") => fields,
            _ => return decodes(descriptor, json).err(),
        };
        for (name, value) in fields {
            let by_name = descriptor.get_field_by_name(name);
            let Some(field) = by_name.or_else(|| descriptor.get_field_by_json_name(name)) else {
                path.push_str(&format!(".{name}"));
                return Some(format!("{} has no such field", descriptor.full_name()));
            };
            let alone = Json::Object([(name.clone(), value.clone())].into_iter().collect());
            let Err(error) = decodes(descriptor, &alone) else { continue };
            path.push_str(&format!(".{name}"));
            let kind = match field.kind() {
                Kind::Message(map) if field.is_map() => map.map_entry_value_field().kind(),
                kind => kind,
            };
            let Kind::Message(inner) = kind else { return Some(error) };
            let items: Vec<(String, &Json)> = match value {
                Json::Array(items) if field.is_list() => {
                    items.iter().enumerate().map(|(index, item)| (format!("[{index}]"), item)).collect()
                }
                Json::Object(items) if field.is_map() => {
                    items.iter().map(|(key, item)| (format!("[{key}]"), item)).collect()
                }
                _ => vec![(String::new(), value)],
            };
            let faulty = items.into_iter().find(|(_, item)| decodes(&inner, item).is_err());
            let Some((index, item)) = faulty else { return Some(error) };
            path.push_str(&index);
            return self.locate(&inner, item, path).or(Some(error));
        }
        decodes(descriptor, json).err()
    }

    /// Returns the message in an `Any`; `None` if its type is unknown or its bytes are none of it.
    #[must_use]
    pub fn unpack(&self, any: &DynamicMessage) -> Option<DynamicMessage> {
        let url = any.get_field_by_name("type_url")?;
        let name = url.as_str()?.rsplit_once('/')?.1;
        let bytes = any.get_field_by_name("value")?;
        DynamicMessage::decode(self.descriptor(name)?, bytes.as_bytes()?.clone()).ok()
    }

    /// Returns a message as an `Any`.
    #[must_use]
    pub fn pack(&self, message: &DynamicMessage) -> DynamicMessage {
        let url = format!("type.googleapis.com/{}", message.descriptor().full_name());
        self.any(url, message.encode_to_vec())
    }

    /// Returns an `Any` of a type and encoded message.
    #[must_use]
    pub fn any(&self, url: String, bytes: Vec<u8>) -> DynamicMessage {
        let mut any = DynamicMessage::new(self.any.clone());
        any.set_field_by_name("type_url", Value::String(url));
        any.set_field_by_name("value", Value::Bytes(bytes.into()));
        any
    }

    /// Visits a message and all messages in it, also those in `Any`, the inner ones first.
    pub fn visit(&self, message: &mut DynamicMessage, visit: &mut dyn FnMut(&mut DynamicMessage)) {
        if message.descriptor().full_name() == ANY {
            if let Some(mut inner) = self.unpack(message) {
                self.visit(&mut inner, visit);
                *message = self.pack(&inner);
            }
            return;
        }
        for (_, value) in message.fields_mut() {
            match value {
                Value::Message(inner) => self.visit(inner, visit),
                Value::List(items) => {
                    items
                        .iter_mut()
                        .filter_map(Value::as_message_mut)
                        .for_each(|item| self.visit(item, visit));
                }
                Value::Map(items) => {
                    let items = items.values_mut().filter_map(Value::as_message_mut);
                    items.for_each(|item| self.visit(item, visit));
                }
                _ => {}
            }
        }
        visit(message);
    }
}

fn depth(json: &Json) -> usize {
    // Not recursive: the depth is that of untrusted input.
    let (mut deepest, mut open) = (0, vec![(json, 1)]);
    while let Some((value, level)) = open.pop() {
        deepest = deepest.max(level);
        match value {
            Json::Array(items) => open.extend(items.iter().map(|item| (item, level + 1))),
            Json::Object(fields) => open.extend(fields.values().map(|field| (field, level + 1))),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
    const MANAGER: &str = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

    fn error(json: Json) -> (String, String) {
        let error = Types::load().unwrap().parse(&json).unwrap_err();
        (error.path, error.problem)
    }

    #[test]
    fn nested_messages_have_the_bytes_of_their_types() {
        let types = Types::load().unwrap();
        let json = json!({"@type": LISTENER, "name": "l", "filter_chains": [{"filters": [{"name": "f",
            "typedConfig": {"@type": MANAGER, "stat_prefix": "s", "streamIdleTimeout": "1.5s"}}]}]});
        let bytes = types.parse(&json).unwrap().encode_to_vec();
        let listener = crate::listener::Listener::decode(&*bytes).unwrap();
        let Some(crate::listener::filter::ConfigType::TypedConfig(any)) =
            &listener.filter_chains[0].filters[0].config_type
        else {
            panic!("{listener:?}");
        };
        let manager = crate::http::HttpConnectionManager::decode(&*any.value).unwrap();
        assert_eq!((any.type_url.as_str(), manager.stat_prefix.as_str()), (MANAGER, "s"));
        assert_eq!(manager.stream_idle_timeout, Some(crate::Duration { seconds: 1, nanos: 500_000_000 }));
    }

    #[test]
    fn errors_name_the_path() {
        assert_eq!(error(json!(1)).0, "resource");
        assert_eq!(error(json!({"name": "l"})).0, "@type");
        assert_eq!(error(json!({"@type": "x/a.B"})).0, "@type");
        let unknown = error(json!({"@type": LISTENER, "nme": "l"}));
        assert_eq!(
            unknown,
            ("nme".to_owned(), "envoy.config.listener.v3.Listener has no such field".to_owned())
        );
        let of_filter = |config: Json| json!({"@type": LISTENER, "filter_chains": [{}, {"filters": [{"typed_config": config}]}]});
        let at = "filter_chains[1].filters[0].typed_config";
        assert_eq!(error(of_filter(json!({"@type": MANAGER, "nme": 1}))).0, format!("{at}.nme"));
        assert_eq!(error(of_filter(json!({"@type": "x/y"}))).0, format!("{at}.@type"));
        let timeout = of_filter(json!({"@type": MANAGER, "stream_idle_timeout": "soon"}));
        assert_eq!(error(timeout).0, format!("{at}.stream_idle_timeout"));
        let name = error(json!({"@type": LISTENER, "address": {"socket_address": {"port_value": "x"}}}));
        assert_eq!(name.0, "address.socket_address.port_value");
    }

    #[test]
    fn deep_objects_are_refused() {
        let mut json = json!({});
        for _ in 0..MAX_DEPTH {
            json = json!({"a": [json]});
        }
        assert!(error(json).1.contains("deeper"));
    }

    #[test]
    fn types_are_dropped_with_their_last_user() {
        let types = Types::load().unwrap();
        assert!(Arc::ptr_eq(&types, &Types::load().unwrap()));
        assert!(types.descriptor("cilium.L7Policy").is_some());
    }
}
