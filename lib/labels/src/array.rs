//! Labels in the order in which selectors read them.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::keys::CIDR;
use crate::label::{Label, LabelRef, Labels, RESERVED};

/// The bits of a length that one character of the packed text holds: all characters below the surrogates are valid.
const LENGTH_BITS: u32 = 14;
/// The mark of a character after which another one holds more bits of the length.
const CONTINUED: u32 = 1 << LENGTH_BITS;

/// Labels sorted by key; labels of one key keep their order of insertion. Cheap to clone.
///
/// All of them are packed into one text: lengths of key, value and source, then these. Those of a prefix, with the label
/// of its world, need no allocation if the prefix is of IPv4 or short: there may be thousands of them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LabelArray(Form);

/// Each list of labels has one form, so that forms are equal if the lists are.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Form {
    Packed(Arc<str>),
    /// The label of a prefix, and the label of a world behind it.
    Prefix {
        key: InlineKey,
        world: World,
    },
}

/// A key of at most 21 bytes; further ones are zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct InlineKey {
    length: u8,
    bytes: [u8; 21],
}

/// A reserved label that comes with the label of a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum World {
    Any,
    Ipv4,
    Ipv6,
}

impl LabelArray {
    /// Iterates over the labels, in order.
    pub fn iter(&self) -> LabelIter<'_> {
        match &self.0 {
            Form::Packed(text) => LabelIter { text, prefix: "", world: None },
            Form::Prefix { key, world } => LabelIter { text: "", prefix: key.as_str(), world: Some(*world) },
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, Form::Packed(text) if text.is_empty())
    }

    /// Iterates over all labels with the key, in order. Linear in the labels.
    pub fn of_key(&self, key: &str) -> impl Iterator<Item = LabelRef<'_>> {
        self.iter().skip_while(move |label| label.key < key).take_while(move |label| label.key == key)
    }

    /// Whether there is a label of this source and key.
    pub fn has(&self, source: &str, key: &str) -> bool {
        self.of_key(key).any(|label| label.source == source)
    }

    /// Returns the labels as texts, in order.
    pub fn texts(&self) -> Vec<String> {
        self.iter().map(|label| label.to_string()).collect()
    }

    /// Returns the labels as a set; of several with one key the last is kept.
    pub fn to_labels(&self) -> Labels {
        self.iter().map(LabelRef::to_label).collect()
    }

    fn pack(mut labels: Vec<LabelRef<'_>>) -> LabelArray {
        labels.sort_by(|a, b| a.key.cmp(b.key));
        if let Some(form) = Form::of_prefix(&labels) {
            return LabelArray(form);
        }
        let mut text = String::new();
        for LabelRef { key, value, source } in labels {
            let parts = [key, value, source];
            parts.iter().for_each(|part| push_length(&mut text, part.len()));
            text.extend(parts);
        }
        LabelArray(Form::Packed(text.into()))
    }
}

impl Default for LabelArray {
    fn default() -> LabelArray {
        LabelArray(Form::Packed(Arc::default()))
    }
}

impl Form {
    /// Returns the form of sorted labels that are those of a short prefix and its world.
    fn of_prefix(labels: &[LabelRef<'_>]) -> Option<Form> {
        let [own, of_world] = labels else { return None };
        let world =
            [World::Any, World::Ipv4, World::Ipv6].into_iter().find(|world| world.label() == *of_world)?;
        let of_prefix = LabelRef { key: own.key, value: "", source: CIDR };
        // An empty key would be taken for the end of the iteration.
        (*own == of_prefix && !own.key.is_empty()).then_some(())?;
        Some(Form::Prefix { key: InlineKey::new(own.key)?, world })
    }
}

impl InlineKey {
    fn new(key: &str) -> Option<InlineKey> {
        let mut bytes = [0; 21];
        bytes.get_mut(..key.len())?.copy_from_slice(key.as_bytes());
        Some(InlineKey { length: key.len() as u8, bytes })
    }

    fn as_str(&self) -> &str {
        // They are copied from a text.
        std::str::from_utf8(&self.bytes[..self.length.into()]).unwrap_or_default()
    }
}

impl World {
    fn label(self) -> LabelRef<'static> {
        let key = match self {
            World::Any => "world",
            World::Ipv4 => "world-ipv4",
            World::Ipv6 => "world-ipv6",
        };
        LabelRef { key, value: "", source: RESERVED }
    }
}

fn push_length(text: &mut String, length: usize) {
    let mut left = length;
    loop {
        let bits = left as u32 & (CONTINUED - 1);
        left >>= LENGTH_BITS;
        let mark = if left > 0 { CONTINUED } else { 0 };
        text.push(char::from_u32(bits | mark).unwrap_or_default());
        if left == 0 {
            return;
        }
    }
}

/// The iterator over the labels of a [`LabelArray`].
#[derive(Debug, Clone)]
pub struct LabelIter<'a> {
    /// The packed labels that are left.
    text: &'a str,
    /// The key of the label of a prefix, if that is left.
    prefix: &'a str,
    /// The label behind that of a prefix, if it is left.
    world: Option<World>,
}

impl<'a> LabelIter<'a> {
    fn length(&mut self) -> usize {
        let (mut length, mut shift) = (0, 0);
        let mut chars = self.text.chars();
        for char in &mut chars {
            let bits = u32::from(char);
            length |= ((bits & (CONTINUED - 1)) as usize) << shift;
            shift += LENGTH_BITS;
            if bits & CONTINUED == 0 {
                break;
            }
        }
        self.text = chars.as_str();
        length
    }

    fn part(&mut self, length: usize) -> &'a str {
        let (part, rest) = self.text.split_at(length);
        self.text = rest;
        part
    }
}

impl<'a> Iterator for LabelIter<'a> {
    type Item = LabelRef<'a>;

    fn next(&mut self) -> Option<LabelRef<'a>> {
        if self.text.is_empty() {
            return match std::mem::take(&mut self.prefix) {
                "" => self.world.take().map(World::label),
                key => Some(LabelRef { key, value: "", source: CIDR }),
            };
        }
        let lengths = [self.length(), self.length(), self.length()];
        let [key, value, source] = lengths.map(|length| self.part(length));
        Some(LabelRef { key, value, source })
    }
}

impl fmt::Debug for LabelArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Ordered as lists of labels.
impl Ord for LabelArray {
    fn cmp(&self, other: &LabelArray) -> Ordering {
        self.iter().cmp(other.iter())
    }
}

impl PartialOrd for LabelArray {
    fn partial_cmp(&self, other: &LabelArray) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'a> FromIterator<LabelRef<'a>> for LabelArray {
    fn from_iter<T: IntoIterator<Item = LabelRef<'a>>>(labels: T) -> LabelArray {
        LabelArray::pack(labels.into_iter().collect())
    }
}

impl<'a> FromIterator<&'a Label> for LabelArray {
    fn from_iter<T: IntoIterator<Item = &'a Label>>(labels: T) -> LabelArray {
        labels.into_iter().map(LabelRef::from).collect()
    }
}

impl FromIterator<Label> for LabelArray {
    fn from_iter<T: IntoIterator<Item = Label>>(labels: T) -> LabelArray {
        labels.into_iter().collect::<Vec<_>>().iter().collect()
    }
}

impl From<&Labels> for LabelArray {
    fn from(labels: &Labels) -> LabelArray {
        labels.0.values().collect()
    }
}

/// Serializes as a list of texts.
impl Serialize for LabelArray {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(|label| label.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array<'a>(texts: impl IntoIterator<Item = &'a str>) -> LabelArray {
        texts.into_iter().map(Label::parse).collect()
    }

    #[test]
    fn labels_of_one_key_keep_their_order() {
        let labels = array(["k8s:b=1", "node:a=2", "k8s:a=1"]);
        assert_eq!(labels.texts(), ["node:a=2", "k8s:a=1", "k8s:b=1"]);
        assert_eq!(labels.of_key("a").count(), 2);
        assert!(labels.has("k8s", "a") && !labels.has("node", "b") && labels.of_key("c").next().is_none());
        assert!(!labels.is_empty() && array([]).is_empty() && array([]) == LabelArray::default());
    }

    #[test]
    fn labels_of_a_short_prefix_are_inline() {
        let form = |texts: &[&str]| {
            let packed = array(texts.iter().copied());
            let list: Vec<Label> = texts.iter().map(|text| Label::parse(text)).collect();
            assert!(packed.iter().map(LabelRef::to_label).eq(list.iter().cloned()), "{texts:?}");
            assert_eq!(packed, list.iter().rev().collect(), "in any order");
            matches!(packed.0, Form::Prefix { .. })
        };
        assert_eq!(size_of::<LabelArray>(), 24);
        for world in ["reserved:world", "reserved:world-ipv4", "reserved:world-ipv6"] {
            assert!(form(&["cidr:255.255.255.255/32", world]));
            assert!(form(&["cidr:fd00-1234-5678--0/48", world]));
            assert!(!form(&["cidr:fd00-1234-5678-9--0/64", world]), "22 bytes");
            assert!(!form(&["cidr:10.0.0.0/8=a", world]) && !form(&["k8s:10.0.0.0/8", world]));
            assert!(!form(&["cidr:10.0.0.0/8", "k8s:app", world]) && !form(&[world]));
        }
        assert!(!form(&["cidr:10.0.0.0/8", "reserved:host"]) && !form(&["cidr:10.0.0.0/8"]) && !form(&[]));
        assert!(!form(&["cidr:10.0.0.0/8", "reserved:world=1"]) && !form(&["cidr:10.0.0.0/8", "k8s:world"]));
    }

    #[test]
    fn parts_of_any_length_and_any_characters_are_packed() {
        let long = |length: usize| "ü".repeat(length);
        let label = |key: &str, value: String| Label { key: key.to_owned(), value, source: String::new() };
        let lengths = [0, 1, 63, 64, 1023, 1024, 8191, 8192, 16_384, 100_000];
        let labels: Vec<Label> = lengths.iter().map(|length| label("=:\0é", long(*length))).collect();
        let packed: LabelArray = labels.iter().collect();
        assert!(packed.iter().map(LabelRef::to_label).eq(labels.iter().cloned()));
        assert_eq!(packed.iter().map(|label| label.value.len()).max(), Some(200_000));
    }

    #[test]
    fn arrays_are_ordered_as_lists_of_labels() {
        let texts = [
            &["k8s:a=1"][..],
            &["k8s:a=1", "k8s:b=1"],
            &["k8s:a=1", "node:a=1"],
            &["node:a=1"],
            &["k8s:a=1000"],
            &["k8s:aa=0"],
            &["cidr:10.0.0.0/8", "reserved:world"],
            &["cidr:10.0.0.0/8", "reserved:world-ipv4"],
            &["cidr:10.0.0.0/8", "reserved:worldwide"],
            &["cidr:10.0.0.0/8"],
            &[],
        ];
        let list =
            |texts: &&[&str]| array(texts.iter().copied()).iter().map(LabelRef::to_label).collect::<Vec<_>>();
        for a in &texts {
            for b in &texts {
                let packed = array(a.iter().copied()).cmp(&array(b.iter().copied()));
                assert_eq!(packed, list(a).cmp(&list(b)), "{a:?} {b:?}");
            }
        }
    }
}
