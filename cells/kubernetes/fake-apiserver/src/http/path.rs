//! Paths and queries of requests.

use std::collections::BTreeMap;

use k8s_types::{Kind, SmolStr};

/// The objects of a request.
#[derive(Debug, PartialEq)]
pub(super) struct Path {
    pub(super) kind: Kind,
    pub(super) namespace: Option<SmolStr>,
    /// The object; none for all of the kind.
    pub(super) name: Option<SmolStr>,
    pub(super) is_status: bool,
}

impl Path {
    /// Parses a path such as `/apis/cilium.io/v2/namespaces/default/ciliumendpoints/web/status`.
    pub(super) fn parse(path: &str) -> Option<Path> {
        let parts: Vec<String> = path.trim_start_matches('/').split('/').map(decoded).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (group, version, rest) = match &*parts {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            // Of namespaces, only themselves have a status.
            ["namespaces", namespace, rest @ ..] if !matches!(rest, [] | ["status"]) => {
                (Some(*namespace), rest)
            }
            rest => (None, rest),
        };
        let (plural, name, is_status) = match rest {
            [plural] => (plural, None, false),
            [plural, name] => (plural, Some(*name), false),
            [plural, name, "status"] => (plural, Some(*name), true),
            _ => return None,
        };
        let kind = Kind::ALL
            .iter()
            .copied()
            .find(|kind| (kind.group(), kind.version(), kind.plural()) == (group, version, *plural))?;
        Some(Path { kind, namespace: namespace.map(SmolStr::from), name: name.map(SmolStr::from), is_status })
    }
}

/// Returns the parameters of a query.
pub(super) fn parameters(query: &str) -> BTreeMap<String, String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (decoded(name), decoded(value))).collect()
}

/// Decodes percent-encoding (RFC 3986, section 2.1); what is no valid code stays as it is.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_kinds_and_objects() {
        let parsed = |path| {
            Path::parse(path).map(|path| {
                let text = |part: Option<SmolStr>| part.map(|part| part.to_string()).unwrap_or_default();
                (path.kind, text(path.namespace), text(path.name), path.is_status)
            })
        };
        let found = |kind, namespace: &str, name: &str, is_status| {
            Some((kind, namespace.to_owned(), name.to_owned(), is_status))
        };
        assert_eq!(parsed("/api/v1/pods"), found(Kind::Pod, "", "", false));
        assert_eq!(parsed("/api/v1/namespaces"), found(Kind::Namespace, "", "", false));
        assert_eq!(parsed("/api/v1/namespaces/a"), found(Kind::Namespace, "", "a", false));
        assert_eq!(parsed("/api/v1/namespaces/a/pods/p%3Aq"), found(Kind::Pod, "a", "p:q", false));
        let status = parsed("/apis/cilium.io/v2/ciliumnodes/n/status");
        assert_eq!(status, found(Kind::CiliumNode, "", "n", true));
        for absent in ["/", "/version", "/api/v1/teapots", "/api/v2/pods", "/apis/cilium.io/v2"] {
            assert_eq!(parsed(absent), None, "{absent}");
        }
    }

    #[test]
    fn parameters_are_decoded() {
        let decoded = parameters("watch=true&fieldSelector=metadata.name%3Dx%2");
        assert_eq!(decoded["watch"], "true");
        assert_eq!(decoded["fieldSelector"], "metadata.name=x%2", "an incomplete code is kept");
    }
}
