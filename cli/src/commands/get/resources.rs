//! Requested resources: types by any of their names, and object names.

use anyhow::bail;
use k8s_types::Kind;

use super::columns::KINDS;

/// Objects of a kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) kind: Kind,
    /// The names; all objects if empty.
    pub(super) names: Vec<String>,
}

/// Parses `TYPE[,TYPE...] [NAME...]` or `TYPE/NAME...`.
pub(super) fn wanted(words: &[String]) -> anyhow::Result<Vec<Wanted>> {
    if !words.iter().any(|word| word.contains('/')) {
        let (types, names) =
            words.split_first().map_or(("", &[][..]), |(types, names)| (types.as_str(), names));
        return types.split(',').map(|name| Ok(Wanted { kind: kind(name)?, names: names.into() })).collect();
    }
    let mut all: Vec<Wanted> = Vec::new();
    for word in words {
        let Some((name, object)) = word.split_once('/').filter(|(_, object)| !object.is_empty()) else {
            bail!("with TYPE/NAME all words are of this form, {word:?} is not");
        };
        let kind = kind(name)?;
        match all.iter_mut().find(|wanted| wanted.kind == kind) {
            Some(wanted) => wanted.names.push(object.to_owned()),
            None => all.push(Wanted { kind, names: vec![object.to_owned()] }),
        }
    }
    Ok(all)
}

/// Returns the kind of a name, with or without its group.
fn kind(name: &str) -> anyhow::Result<Kind> {
    let named = Kind::named(name).or_else(|| {
        let (short, group) = name.split_once('.')?;
        Kind::named(short).filter(|kind| kind.group() == group)
    });
    match named {
        Some(kind) if KINDS.contains(&kind) => Ok(kind),
        Some(kind) => bail!("the agent has no table of {}; it has {}", kind.plural(), known()),
        None => bail!("there is no resource type {name:?}; the agent has {}", known()),
    }
}

/// Lists the known types: `pods (po), services (svc), ...`.
fn known() -> String {
    let name = |kind: &Kind| match kind.short_names() {
        [] => kind.plural().to_owned(),
        short => format!("{} ({})", kind.plural(), short.join(", ")),
    };
    KINDS.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Returns `ciliumnodes.cilium.io`, `pods`.
pub(super) fn full_name(kind: Kind) -> String {
    with_group(kind.plural(), kind)
}

/// Returns `ciliumnode.cilium.io`, `pod`.
pub(super) fn singular_name(kind: Kind) -> String {
    with_group(&kind.name().to_lowercase(), kind)
}

fn with_group(name: &str, kind: Kind) -> String {
    match kind.group() {
        "" => name.to_owned(),
        group => format!("{name}.{group}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Vec<(Kind, String)>, String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let wanted = wanted(&words).map_err(|error| error.to_string())?;
        Ok(wanted.into_iter().map(|wanted| (wanted.kind, wanted.names.join(" "))).collect())
    }

    #[test]
    fn types_have_all_their_names() {
        for &kind in KINDS {
            let singular = kind.name().to_lowercase();
            let (full, one) = (full_name(kind), singular_name(kind));
            let names = [kind.plural(), kind.name(), &singular, &full, &one];
            for name in names.iter().chain(kind.short_names()) {
                assert_eq!(read(name), Ok(vec![(kind, String::new())]), "{name}");
            }
        }
    }

    #[test]
    fn objects_are_named_behind_their_type_or_with_it() {
        let pods = |names: &str| (Kind::Pod, names.to_owned());
        assert_eq!(read("po a b"), Ok(vec![pods("a b")]));
        assert_eq!(read("po,svc"), Ok(vec![pods(""), (Kind::Service, String::new())]));
        assert_eq!(read("pod/a svc/c pods/b"), Ok(vec![pods("a b"), (Kind::Service, "c".to_owned())]));
        assert_eq!(read("pod/a b").unwrap_err(), "with TYPE/NAME all words are of this form, \"b\" is not");
        assert!(read("pod/").is_err());
    }

    #[test]
    fn unknown_types_are_reported_with_the_known_ones() {
        let error = read("deployments").unwrap_err();
        assert!(
            error.starts_with("there is no resource type \"deployments\"; the agent has pods (po), "),
            "{error}"
        );
        assert!(read("secrets").unwrap_err().starts_with("the agent has no table of secrets; it has pods"));
        assert!(read("pods.cilium.io").is_err());
    }
}
