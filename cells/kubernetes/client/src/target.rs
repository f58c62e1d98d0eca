//! Paths of objects.

use std::fmt::Write;

use http::Method;
use k8s_types::{Key, Kind, Selection, SmolStr};

/// The objects of a request: path, selectors, and media types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The kind; none for CustomResourceDefinitions.
    pub(crate) kind: Option<Kind>,
    /// The objects as displayed: `pods`, `configmaps in kube-system`.
    pub(crate) name: String,
    /// The plural name in paths, `pods`.
    pub(crate) plural: &'static str,
    /// The API group, for messages.
    pub(crate) group: &'static str,
    /// The path without the query.
    pub(crate) path: String,
    /// The selectors as query parameters, each after an ampersand.
    selectors: String,
    /// The accepted media types.
    pub(crate) accept: &'static str,
}

/// JSON only: protobuf would need a second set of types.
const JSON: &str = "application/json";

/// Only the metadata of objects.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
                        application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

impl Target {
    /// Returns the target of a selection.
    pub(crate) fn of(selection: &Selection) -> Target {
        let mut selectors = String::new();
        let mut name = selection.kind.plural().to_owned();
        for (key, value) in [("fieldSelector", &selection.fields), ("labelSelector", &selection.labels)] {
            if !value.is_empty() {
                let _ = write!(selectors, "&{key}={}", escaped(value));
                let _ = write!(name, " with {value}");
            }
        }
        if let Some(namespace) = &selection.namespace {
            let _ = write!(name, " in {namespace}");
        }
        Target {
            kind: Some(selection.kind),
            name,
            plural: selection.kind.plural(),
            group: selection.kind.group(),
            path: path(selection.kind, selection.namespace.as_ref(), None, false),
            selectors,
            accept: JSON,
        }
    }

    /// Returns the target of CustomResourceDefinitions, only their metadata.
    pub(crate) fn definitions() -> Target {
        Target {
            kind: None,
            name: "customresourcedefinitions".to_owned(),
            plural: "customresourcedefinitions",
            group: "apiextensions.k8s.io",
            path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(),
            selectors: String::new(),
            accept: METADATA,
        }
    }

    /// Returns the name of the scope in health.
    pub(crate) fn scope(&self) -> String {
        let words =
            self.name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.').filter(|w| !w.is_empty());
        words.collect::<Vec<_>>().join("-").replace('.', "-")
    }

    /// Returns the URI of a list or a watch.
    pub(crate) fn uri(&self, query: &Query) -> String {
        let mut text = match query {
            Query::Stream { version, seconds } => {
                let version =
                    version.as_ref().map(|version| format!("&resourceVersion={}", escaped(version)));
                format!(
                    "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true\
                     &timeoutSeconds={seconds}{}",
                    version.unwrap_or_default()
                )
            }
            Query::Page { continue_token: None } => format!("limit={PAGE_SIZE}&resourceVersion=0"),
            Query::Page { continue_token: Some(token) } => {
                format!("limit={PAGE_SIZE}&continue={}", escaped(token))
            }
            Query::Whole => String::from("resourceVersion=0"),
            Query::Watch { version, seconds } => format!(
                "watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={}",
                escaped(version)
            ),
        };
        text.push_str(&self.selectors);
        format!("{}?{text}", self.path)
    }
}

/// The maximum number of objects in a page.
const PAGE_SIZE: u32 = 500;

/// The query of a request for objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Query {
    /// All objects, then their changes.
    Stream { version: Option<String>, seconds: u64 },
    /// A page of all objects.
    Page { continue_token: Option<String> },
    /// All objects, in one response.
    Whole,
    /// The changes since a version.
    Watch { version: String, seconds: u64 },
}

/// Returns the path of a kind's objects, or of one of them.
pub(crate) fn path(kind: Kind, namespace: Option<&SmolStr>, name: Option<&str>, status: bool) -> String {
    let mut path = match kind.group() {
        "" => format!("/api/{}", kind.version()),
        group => format!("/apis/{group}/{}", kind.version()),
    };
    if let Some(namespace) = namespace.filter(|namespace| kind.namespaced() && !namespace.is_empty()) {
        let _ = write!(path, "/namespaces/{}", escaped(namespace));
    }
    let _ = write!(path, "/{}", kind.plural());
    if let Some(name) = name {
        let _ = write!(path, "/{}", escaped(name));
    }
    if status {
        path.push_str("/status");
    }
    path
}

/// Returns the path of an object.
pub(crate) fn path_of(kind: Kind, key: &Key, status: bool) -> String {
    path(kind, Some(&key.namespace), Some(&key.name), status)
}

/// Returns a path without names, for labels of metrics: `/api/v1/namespaces/{namespace}/pods/{name}`.
pub(crate) fn template(path: &str) -> String {
    let parts: Vec<&str> =
        path.split('?').next().unwrap_or_default().trim_start_matches('/').split('/').collect();
    let root = match parts.first() {
        Some(&"api") => 2,
        Some(&"apis") => 3,
        _ => return path.to_owned(),
    };
    let (root, rest) = parts.split_at(root.min(parts.len()));
    let rest: Vec<&str> = match *rest {
        ["namespaces", _, plural] => vec!["namespaces", "{namespace}", plural],
        ["namespaces", _, plural, _, ref deeper @ ..] => {
            [&["namespaces", "{namespace}", plural, "{name}"], deeper].concat()
        }
        [plural, _, ref deeper @ ..] => [&[plural, "{name}"], deeper].concat(),
        _ => rest.to_vec(),
    };
    format!("/{}", [root, &rest].concat().join("/"))
}

/// Returns the RBAC verb of a request.
pub(crate) fn verb(method: &Method, uri: &str) -> &'static str {
    let (path, text) = uri.split_once('?').unwrap_or((uri, ""));
    let one = template(path).ends_with("{name}") || path.ends_with("/status");
    match *method {
        Method::GET if text.starts_with("watch=true") => "watch",
        Method::GET if one => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        _ => "delete",
    }
}

/// Percent-encodes all but the unreserved characters (RFC 3986, section 2.3).
fn escaped(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => drop(write!(out, "%{byte:02X}")),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_selections() {
        let pods = Target::of(&Selection::all(Kind::Pod).with_fields("spec.nodeName=n1"));
        assert_eq!(
            pods.uri(&Query::Watch { version: "7".to_owned(), seconds: 300 }),
            "/api/v1/pods?watch=true&allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion=7\
             &fieldSelector=spec.nodeName%3Dn1"
        );
        assert_eq!(
            (pods.name.as_str(), &*pods.scope()),
            ("pods with spec.nodeName=n1", "pods-with-spec-nodeName-n1")
        );
        let maps =
            Target::of(&Selection::all(Kind::ConfigMap).in_namespace("kube-system").named("cilium-config"));
        assert_eq!(
            maps.uri(&Query::Page { continue_token: None }),
            "/api/v1/namespaces/kube-system/configmaps?limit=500&resourceVersion=0\
             &fieldSelector=metadata.name%3Dcilium-config"
        );
        let nodes = Target::of(&Selection::all(Kind::CiliumNode));
        let stream = nodes.uri(&Query::Stream { version: None, seconds: 400 });
        assert!(
            stream.starts_with("/apis/cilium.io/v2/ciliumnodes?watch=true&sendInitialEvents=true&"),
            "{stream}"
        );
        assert!(!stream.contains("resourceVersion="), "{stream}");
    }

    #[test]
    fn metrics_contain_no_names_of_objects() {
        let of = |kind, namespace: &str, name: &str, status| {
            template(&path_of(kind, &Key::new(namespace, name), status))
        };
        assert_eq!(of(Kind::Pod, "shop", "web-0", false), "/api/v1/namespaces/{namespace}/pods/{name}");
        assert_eq!(of(Kind::CiliumNode, "", "n1", true), "/apis/cilium.io/v2/ciliumnodes/{name}/status");
        assert_eq!(of(Kind::Namespace, "", "shop", false), "/api/v1/namespaces/{name}");
        assert_eq!(template("/api/v1/pods?limit=500"), "/api/v1/pods");
        assert_eq!(template("/version"), "/version");
        assert_eq!(template("/api/v1/namespaces/shop/pods"), "/api/v1/namespaces/{namespace}/pods");
    }

    #[test]
    fn verbs_are_those_of_rbac() {
        assert_eq!(verb(&Method::GET, "/api/v1/pods?watch=true"), "watch");
        assert_eq!(verb(&Method::GET, "/api/v1/pods?limit=500"), "list");
        assert_eq!(verb(&Method::GET, "/api/v1/namespaces/shop/pods/web-0"), "get");
        assert_eq!(verb(&Method::PUT, "/apis/cilium.io/v2/ciliumnodes/n1/status"), "update");
    }
}
