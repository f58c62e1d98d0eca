//! What a source says, decoded.

use std::sync::Arc;
use std::time::SystemTime;

use futures::{Stream, StreamExt};
use serde::Deserialize;

use k8s_types::{
    DEFAULT_NAMESPACE, Key, Kind, Problem, Refusal, Resource, Selection, SmolStr, Source, SourceError,
    WatchEvent,
};

use crate::Row;

/// What a source says of rows `R`.
#[derive(Debug, Clone, PartialEq)]
pub enum Said<R> {
    /// A list begins: what is applied until [`Listed`](Said::Listed) is all there is.
    Restart,
    /// The list is complete.
    Listed,
    /// The object is like this, new or changed.
    Applied(R),
    /// There is such an object, and it is wrong: what it was before counts.
    Wrong(Wrong),
    /// The object is gone.
    Deleted(Key),
    /// Nothing has changed up to now.
    Progress,
}

/// An object that cannot be read.
#[derive(Debug, Clone, PartialEq)]
pub struct Wrong {
    /// Its name, if that much can be read of it.
    pub key: Option<Key>,
    /// Where a person finds it.
    pub origin: SmolStr,
    /// The faults by path, with their remedies.
    pub refusal: Refusal,
}

/// Where an object was said to be.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) kind: Kind,
    pub(crate) source: Arc<str>,
    pub(crate) origin: SmolStr,
    pub(crate) at: SystemTime,
}

/// What a source says of objects of a type, for ever, as [`Source::watch`]: a list, then what changes. An object that is
/// wrong is told as such and ends nothing.
///
/// Who wants a table of them has [`table`](crate::table()).
///
/// ```
/// # use std::sync::Arc;
/// use futures::StreamExt;
/// use k8s_tables::{Resource, Said, Selection, core::ConfigMap};
///
/// async fn follow(source: Arc<dyn k8s_tables::Source>) {
///     let what = Selection::all(ConfigMap::KIND).in_namespace("kube-system").named("cilium-config");
///     let mut said = k8s_tables::events::<ConfigMap>(&*source, what);
///     while let Some(said) = said.next().await {
///         match said {
///             Ok(Said::Applied(config)) => println!("{:?}", config.data),
///             Ok(Said::Wrong(wrong)) => println!("{}", wrong.refusal),
///             Ok(_) => {}
///             Err(error) => println!("{error}; it goes on by itself"),
///         }
///     }
/// }
/// ```
pub fn events<T: Resource>(
    source: &dyn Source,
    what: Selection,
) -> impl Stream<Item = Result<Said<Row<T>>, SourceError>> + Send + Unpin + use<T> {
    said(source, what, |json, from: &Origin| {
        let object = k8s_types::decode(json)?;
        Ok(Row { object, source: from.source.clone(), origin: from.origin.clone(), updated_at: from.at })
    })
}

/// The same with a reader of rows.
pub(crate) fn said<R, F>(
    source: &dyn Source,
    what: Selection,
    mut read: F,
) -> impl Stream<Item = Result<Said<R>, SourceError>> + Send + Unpin + use<R, F>
where
    F: FnMut(&[u8], &Origin) -> Result<R, Refusal> + Send + 'static,
{
    let (kind, name): (Kind, Arc<str>) = (what.kind, source.name().into());
    source.watch(what).map(move |event| {
        Ok(match event? {
            WatchEvent::Restart => Said::Restart,
            WatchEvent::Listed => Said::Listed,
            WatchEvent::Deleted(key) => Said::Deleted(key),
            WatchEvent::Progress => Said::Progress,
            WatchEvent::Unreadable { key, reason } => {
                let refusal = Problem::new("", reason).into();
                Said::Wrong(Wrong { key, origin: SmolStr::default(), refusal })
            }
            WatchEvent::Applied { json, origin } => {
                let from = Origin { kind, source: name.clone(), origin, at: SystemTime::now() };
                match read(&json, &from) {
                    Ok(row) => Said::Applied(row),
                    Err(refusal) => {
                        Said::Wrong(Wrong { key: key_of(kind, &json), origin: from.origin, refusal })
                    }
                }
            }
        })
    })
}

/// The name of an object in which anything else may be wrong.
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
    fn the_name_is_found_in_what_is_wrong() {
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
