//! The key of a label set in the index of identities.

use identity_core::label_key;
use ipnetwork::IpNetwork;
use labels::{CIDR, Label, LabelArray, RESERVED};
use statedb::{IndexKey, KeyBuf, KeyParseError};

use crate::cidr::{key, prefix};

/// A label set as a key: its texts joined by `;`. The labels of a prefix, of which there may be thousands, are its few
/// bytes behind one that begins no text; as text they are 60 bytes an identity more.
pub(crate) struct LabelKey(pub(crate) LabelArray);

/// The first byte of the key of a prefix, which is in no text.
const OF_PREFIX: u8 = 0xff;
const WORLDS: [&str; 3] = ["world", "world-ipv4", "world-ipv6"];

impl LabelKey {
    /// Returns the prefix and the index of its world, if the labels are exactly those of a prefix.
    fn of_prefix(&self) -> Option<(IpNetwork, u8)> {
        let mut labels = self.0.iter();
        let (own, of_world) = (labels.next()?, labels.next()?);
        if labels.next().is_some() || own.source != CIDR || of_world.source != RESERVED {
            return None;
        }
        let world = WORLDS.iter().position(|world| *world == of_world.key)?;
        let prefix = prefix(&self.0)?;
        let is_canonical = own.key == key(prefix) && own.value.is_empty() && of_world.value.is_empty();
        is_canonical.then_some((prefix, world as u8))
    }
}

impl IndexKey for LabelKey {
    fn encode(&self, to: &mut KeyBuf) {
        match self.of_prefix() {
            Some((prefix, world)) => {
                to.push(&[OF_PREFIX, world]);
                prefix.encode(to);
            }
            None => label_key(&self.0).encode(to),
        }
    }

    fn encode_text(text: &str, to: &mut KeyBuf) -> Result<(), KeyParseError> {
        let labels = LabelKey(text.split(';').map(Label::parse).collect());
        match labels.of_prefix() {
            Some(_) => labels.encode(to),
            None => text.encode(to),
        }
        Ok(())
    }

    /// Labels of prefixes do not sort as their texts do: a beginning of one is an error.
    fn encode_text_prefix(text: &str, to: &mut KeyBuf) -> Result<(), KeyParseError> {
        if text.strip_prefix(CIDR).is_some_and(|rest| rest.starts_with(':')) {
            return Err(KeyParseError::new(text, "a beginning of labels other than those of prefixes"));
        }
        str::encode_text_prefix(text, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cidr::cidr_labels;

    fn encoded(labels: &LabelArray) -> Vec<u8> {
        KeyBuf::of(&LabelKey(labels.clone())).as_bytes().to_vec()
    }

    #[test]
    fn labels_of_prefixes_have_short_keys_by_text_too() {
        let mut all = std::collections::BTreeSet::new();
        let families = [(true, false), (false, true), (true, true)];
        let prefixes = ["10.0.0.0/8", "10.0.0.0/9", "10.1.2.3/32", "::a00:0/104", "fd00:1::/64", "0.0.0.0/1"];
        for text in prefixes {
            for (v4, v6) in families {
                let labels = cidr_labels(text.parse().unwrap(), v4, v6);
                let key = encoded(&labels);
                assert!(key.len() <= 20 && key[0] == OF_PREFIX, "{text}");
                let mut by_text = KeyBuf::new();
                LabelKey::encode_text(&label_key(&labels), &mut by_text).unwrap();
                assert_eq!(by_text.as_bytes(), key);
                all.insert(key);
            }
        }
        // Of the options of families, two give a prefix the same world.
        assert_eq!(all.len(), prefixes.len() * 2);
    }

    #[test]
    fn other_labels_have_their_text_as_key() {
        for texts in [
            &["k8s:app=web"][..],
            &["reserved:world"],
            &["cidr:10.0.0.0/8"],
            &["cidr:10.0.0.1/8", "reserved:world"],
            &["cidr:10.0.0.0/8=a", "reserved:world"],
            &["cidr:10.0.0.0/8", "reserved:host"],
            &["cidr:10.0.0.0/8", "fqdn:example.com", "reserved:world"],
            &["cidr:10.0.0.0/8", "cidr:10.0.0.0/9", "reserved:world"],
        ] {
            let labels: LabelArray = texts.iter().map(|text| Label::parse(text)).collect();
            let text = label_key(&labels);
            assert_eq!(encoded(&labels), KeyBuf::of(text.as_str()).as_bytes(), "{text}");
            let mut by_text = KeyBuf::new();
            LabelKey::encode_text(&text, &mut by_text).unwrap();
            assert_eq!(by_text.as_bytes(), encoded(&labels));
        }
        let mut key = KeyBuf::new();
        assert!(LabelKey::encode_text_prefix("cidr:10.", &mut key).is_err());
        LabelKey::encode_text_prefix("k8s:a", &mut key).unwrap();
        assert_eq!(key.as_bytes(), b"k8s:a");
    }
}
