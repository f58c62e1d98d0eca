//! The tables `selectors` and `subject-selectors`: the peers that rules name, and the endpoints that rules select.

use std::sync::Arc;

use api_models as models;
use labels::Label;
use policy_engine::{SelectorChanges, SelectorRow, SelectorText};
use serde::{Serialize, Serializer};
use statedb::{IndexKey, KeyBuf, KeyParseError, Query, RwTable, TableDisplay, TableSpec};

/// A row of `selectors`, in the form of the REST API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerSelector(pub SelectorRow);

/// A row of `subject-selectors`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubjectSelector(pub SelectorRow);

/// Returns the model of a row, with those of its identities that are listed.
pub(crate) fn model(row: &SelectorRow, is_listed: impl Fn(u32) -> bool) -> models::SelectorIdentityMapping {
    let label = |text: &String| {
        let Label { key, value, source } = Label::parse(text);
        models::Label { key, source, value }
    };
    let labels = |labels: &Arc<[String]>| labels.iter().map(label).collect();
    models::SelectorIdentityMapping {
        identities: row
            .identities
            .iter()
            .copied()
            .filter(|id| is_listed(*id))
            .map(i64::from)
            .collect::<Vec<_>>()
            .into(),
        labels: row.uses.labels.iter().map(labels).collect(),
        selector: row.selector.to_string(),
        users: i64::try_from(row.uses.count).unwrap_or(i64::MAX),
    }
}

/// The text of a selector as a key. That of a prefix is its few bytes, behind one that begins no text: there may be
/// thousands, and nodes for their decimal digits would be sparse.
#[derive(Debug)]
pub struct TextKey(SelectorText);

/// The first byte of the key of a prefix, which is in no text.
const OF_PREFIX: u8 = 0xff;

impl IndexKey for TextKey {
    fn encode(&self, key: &mut KeyBuf) {
        let Some((prefix, is_bare)) = self.0.prefix() else { return self.0.text().as_ref().encode(key) };
        key.push(&[OF_PREFIX]);
        // The address as written and not that of the network: texts with other host bits are other selectors.
        prefix.ip().encode(key);
        key.push(&[prefix.prefix(), is_bare.into()]);
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        TextKey(text.into()).encode(key);
        Ok(())
    }

    /// Prefixes do not sort as their texts do: a beginning of one is an error.
    fn encode_text_prefix(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        if text.starts_with("cidr:") {
            return Err(KeyParseError::new(
                text,
                "a beginning of the text of a selector other than a prefix",
            ));
        }
        str::encode_text_prefix(text, key)
    }
}

const COLUMNS: &[&str] = &["Selector", "Labels", "Users", "Identities"];

fn columns(row: &SelectorRow) -> Vec<String> {
    let labels: Vec<String> = row.uses.labels.iter().map(|labels| labels.join(",")).collect();
    let identities: Vec<String> = row.identities.iter().map(u32::to_string).collect();
    vec![row.selector.to_string(), labels.join("; "), row.uses.count.to_string(), identities.join(",")]
}

macro_rules! table {
    ($row:ident, $name:literal) => {
        impl Serialize for $row {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                model(&self.0, |_| true).serialize(to)
            }
        }

        impl From<SelectorRow> for $row {
            fn from(row: SelectorRow) -> $row {
                $row(row)
            }
        }

        impl $row {
            /// Queries the selector with this text.
            pub fn by_text(text: &SelectorText) -> Query<$row> {
                Query::primary(TextKey(text.clone()))
            }
        }

        impl TableSpec for $row {
            const NAME: &'static str = $name;
            const PRIMARY: &'static str = "selector";
            type Key<'a> = TextKey;

            fn key(&self) -> TextKey {
                TextKey(self.0.selector.clone())
            }
        }

        impl TableDisplay for $row {
            fn columns() -> &'static [&'static str] {
                COLUMNS
            }

            fn row(&self) -> Vec<String> {
                columns(&self.0)
            }
        }
    };
}

table!(PeerSelector, "selectors");
table!(SubjectSelector, "subject-selectors");

/// Applies changes of the engine's selectors to a table.
pub(crate) fn apply_changes<R>(
    table: &RwTable<R>,
    changes: SelectorChanges,
    by: fn(&SelectorText) -> Query<R>,
) where
    R: TableSpec + From<SelectorRow> + PartialEq,
{
    if changes.is_empty() {
        return;
    }
    table.transact(|w| {
        for (text, row) in changes {
            match row.map(R::from) {
                Some(row) if w.get(by(&text)).is_some_and(|known| **known == row) => {}
                Some(row) => drop(w.insert(row)),
                None => drop(w.delete(by(&text))),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_different_texts_differ() {
        let texts = [
            "cidr:10.0.0.0/8",
            "cidr:10.0.0.1/8",
            "cidr:10.0.0.0/9",
            "cidr:10.0.0.1/32",
            "cidr:10.0.0.1",
            "cidr:fd00::/8",
            "cidr:0.0.0.0/0",
            "cidr:10.0.0.0/8-[10.1.0.0/16]",
            "MatchName: a, MatchPattern: ",
        ];
        let key = |text: &str| {
            let mut key = KeyBuf::new();
            TextKey::encode_text(text, &mut key).unwrap();
            assert_eq!(key.as_bytes(), KeyBuf::of(&TextKey(text.into())).as_bytes());
            key
        };
        let keys: std::collections::BTreeSet<KeyBuf> = texts.into_iter().map(key).collect();
        assert_eq!(keys.len(), texts.len());
        assert!(key("cidr:10.0.0.0/8").as_bytes().len() <= 8);
        assert!(TextKey::encode_text_prefix("cidr:10.", &mut KeyBuf::new()).is_err());
    }
}
