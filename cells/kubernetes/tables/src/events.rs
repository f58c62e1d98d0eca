//! Decoded events of a source.

use std::sync::Arc;
use std::time::SystemTime;

use futures::{Stream, StreamExt};
use serde::Deserialize;

use k8s_types::{
    DEFAULT_NAMESPACE, Key, Kind, Problem, Refusal, Resource, Selection, SmolStr, Source, SourceError,
    WatchEvent,
};

use crate::Row;

/// An event of a source of rows `R`.
#[derive(Debug, Clone, PartialEq)]
pub enum ObjectEvent<R> {
    /// A list begins: the objects until [`Listed`](ObjectEvent::Listed) are all that exist.
    Restart,
    /// The list is complete.
    Listed,
    /// An object, new or changed.
    Applied(R),
    /// An object is invalid: its last good version is kept.
    Invalid(InvalidObject),
    /// The object was deleted.
    Deleted(Key),
    /// Nothing has changed up to now.
    Progress,
}

/// An object that cannot be decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct InvalidObject {
    /// Its name, if that could be read.
    pub key: Option<Key>,
    /// The location of its manifest.
    pub origin: SmolStr,
    /// The problems by path, with their remedies.
    pub refusal: Refusal,
}

/// The source of an object.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) kind: Kind,
    pub(crate) source: Arc<str>,
    pub(crate) origin: SmolStr,
    pub(crate) at: SystemTime,
}

/// Decodes the events of objects of a type, as [`Source::watch`] sends them, without end. An invalid object is an event
/// and does not end the stream.
///
/// For a table of them use [`table`](crate::table()).
///
/// ```
/// # use std::sync::Arc;
/// use futures::StreamExt;
/// use k8s_tables::{ObjectEvent, Resource, Selection, core::ConfigMap};
///
/// async fn follow(source: Arc<dyn k8s_tables::Source>) {
///     let selection = Selection::all(ConfigMap::KIND).in_namespace("kube-system").named("cilium-config");
///     let mut events = k8s_tables::events::<ConfigMap>(&*source, selection);
///     while let Some(event) = events.next().await {
///         match event {
///             Ok(ObjectEvent::Applied(config)) => println!("{:?}", config.data),
///             Ok(ObjectEvent::Invalid(invalid)) => println!("{}", invalid.refusal),
///             Ok(_) => {}
///             Err(error) => println!("{error}; the source reconnects"),
///         }
///     }
/// }
/// ```
pub fn events<T: Resource>(
    source: &dyn Source,
    selection: Selection,
) -> impl Stream<Item = Result<ObjectEvent<Row<T>>, SourceError>> + Send + Unpin + use<T> {
    decode_events(source, selection, |json, from: &Origin| {
        let object = k8s_types::decode(json)?;
        Ok(Row { object, source: from.source.clone(), origin: from.origin.clone(), updated_at: from.at })
    })
}

/// As [`events`], with a function that decodes rows.
pub(crate) fn decode_events<R, F>(
    source: &dyn Source,
    selection: Selection,
    mut read: F,
) -> impl Stream<Item = Result<ObjectEvent<R>, SourceError>> + Send + Unpin + use<R, F>
where
    F: FnMut(&[u8], &Origin) -> Result<R, Refusal> + Send + 'static,
{
    let (kind, name): (Kind, Arc<str>) = (selection.kind, source.name().into());
    source.watch(selection).map(move |event| {
        Ok(match event? {
            WatchEvent::Restart => ObjectEvent::Restart,
            WatchEvent::Listed => ObjectEvent::Listed,
            WatchEvent::Deleted(key) => ObjectEvent::Deleted(key),
            WatchEvent::Progress => ObjectEvent::Progress,
            WatchEvent::Unreadable { key, reason } => {
                let refusal = Problem::new("", reason).into();
                ObjectEvent::Invalid(InvalidObject { key, origin: SmolStr::default(), refusal })
            }
            WatchEvent::Applied { json, origin } => {
                let from = Origin { kind, source: name.clone(), origin, at: SystemTime::now() };
                match read(&json, &from) {
                    Ok(row) => ObjectEvent::Applied(row),
                    Err(refusal) => ObjectEvent::Invalid(InvalidObject {
                        key: key_of(kind, &json),
                        origin: from.origin,
                        refusal,
                    }),
                }
            }
        })
    })
}

/// Returns the name of an object that may be otherwise invalid.
fn key_of(kind: Kind, json: &[u8]) -> Option<Key> {
    #[derive(Deserialize)]
    struct Named {
        metadata: Names,
    }
    #[derive(Deserialize)]
    struct Names {
        name: SmolStr,
        #[serde(default)]
        namespace: Option<SmolStr>,
    }
    let Named { metadata: Names { name, namespace } } = serde_json::from_slice(json).ok()?;
    let namespace = namespace.unwrap_or_default();
    let namespace = match kind.namespaced() {
        true if namespace.is_empty() => DEFAULT_NAMESPACE.into(),
        true => namespace,
        false => SmolStr::default(),
    };
    (!name.is_empty()).then_some(Key { namespace, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_invalid_object_is_found() {
        let key = |json: &[u8]| key_of(Kind::Pod, json).map(|key| key.to_string());
        let deep = format!(
            r#"{{"spec": {}, "metadata": {{"name": "a", "labels": 1}}}}"#,
            "[".repeat(300) + &"]".repeat(300)
        );
        assert_eq!(key(deep.as_bytes()).as_deref(), Some("default/a"));
        assert_eq!(
            key(b"{\"x\": \"\xff\", \"metadata\": {\"namespace\": \"b\", \"name\": \"a\"}}").as_deref(),
            Some("b/a")
        );
        assert_eq!(key(br#"{"metadata": {"name": ""}}"#), None);
        assert_eq!(key(b"<html>"), None);
    }
}
