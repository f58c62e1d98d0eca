//! Objects generated from the schemas: valid ones of each kind, and invalid ones with a single fault.
//!
//! Deterministic by seed. For tests of this crate and of crates that receive objects.

use serde_json::{Map, Value, json};

use crate::schema::{Node, SCHEMAS, Shape};
use crate::{Kind, push_member};

/// A mutation that makes a valid object invalid.
#[derive(Debug, Clone)]
pub struct Mutant {
    /// The fault.
    pub fault: &'static str,
    /// The path of the fault.
    pub path: String,
    /// The JSON pointer of the replaced value (RFC 6901).
    pointer: String,
    value: Value,
}

impl Mutant {
    /// Applies the mutation to a valid object; returns the invalid one.
    pub fn of(&self, object: &Value) -> Value {
        let mut object = object.clone();
        match (object.pointer_mut(&self.pointer), self.path.ends_with(UNKNOWN)) {
            (Some(Value::Object(members)), true) => {
                _ = members.insert(UNKNOWN.to_owned(), self.value.clone())
            }
            (Some(place), _) => *place = self.value.clone(),
            (None, _) => {}
        }
        object
    }
}

/// A field name that no schema has.
const UNKNOWN: &str = "noSuchField";

/// Returns a valid object with a random subset of its fields.
pub fn valid(kind: Kind, seed: u64) -> Value {
    make(kind, Random { state: seed, all: false })
}

/// Returns a valid object with all fields of its schema.
pub fn full(kind: Kind) -> Value {
    make(kind, Random { state: 0, all: true })
}

/// Returns all single mutations that make an object invalid.
pub fn mutants(kind: Kind, object: &Value) -> Vec<Mutant> {
    let mut mutants = Mutants(Vec::new());
    let Some(definition) = SCHEMAS.definition(kind) else { return Vec::new() };
    let mut place = Place::default();
    mutants.replace(&place, "no object", json!([]));
    if let (Shape::Object { fields, .. }, Value::Object(members)) =
        (&SCHEMAS.node(definition.root).shape, object)
    {
        mutants.unknown(&place);
        for field in fields {
            let value = members.get(field.name).unwrap_or(&Value::Null);
            place.enter(field.name, |place| mutants.member(place, field.required, field.node, value));
        }
        place.enter("metadata", |place| {
            mutants.value(place, SCHEMAS.node(metadata()), &object["metadata"]);
            place.enter("name", |place| mutants.replace(place, "a bad name", json!("A_b")));
        });
    }
    mutants.0
}

/// Returns malformed and unusual texts, each with whether a decoder has to refuse it.
pub fn broken(object: &Value) -> Vec<(&'static str, Vec<u8>, bool)> {
    let text = object.to_string();
    let with = |field: &str, value: &str| format!("{{{field:?}:{value},{}", &text[1..]).into_bytes();
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(200_000), close.repeat(200_000));
    let at = text.find("\"name\":\"").map_or(0, |at| at + "\"name\":\"".len());
    let mut no_utf8 = text.clone().into_bytes();
    no_utf8.insert(at, 0xff);
    let mut long = object.clone();
    long["metadata"]["labels"] = json!({"a": "b".repeat(1 << 22)});
    vec![
        ("nothing", Vec::new(), true),
        ("half of it", text.as_bytes()[..text.len() / 2].to_vec(), true),
        ("a page", b"<html><body>502 Bad Gateway</body></html>".to_vec(), true),
        ("something behind it", format!("{text} x").into_bytes(), true),
        ("a name given twice", with("metadata", "{\"name\":\"other\"}"), true),
        ("no UTF-8", no_utf8, true),
        ("a list of it", format!("[{text}]").into_bytes(), true),
        ("depth in a field", with("metadata", &deep("[", "]")), true),
        ("depth beside the fields", with("unknown", &deep("{\"a\":[", "]}").replace("[]", "[1]")), false),
        ("a long label", long.to_string().into_bytes(), false),
        ("a number beyond all", with("unknown", "1e99999"), false),
    ]
}

fn metadata() -> usize {
    SCHEMAS.definitions("ObjectMeta")[0].root
}

/// The random number generator SplitMix64.
struct Random {
    state: u64,
    all: bool,
}

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end.max(1) as u64) as usize
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

fn make(kind: Kind, mut random: Random) -> Value {
    let Some(definition) = SCHEMAS.definition(kind) else { return Value::Null };
    let mut object = random.value(SCHEMAS.node(definition.root));
    let mut metadata = random.value(SCHEMAS.node(metadata()));
    metadata["name"] = format!("{}{}", random.one(&["a", "web", "node"]), random.below(1000)).into();
    if !kind.namespaced() {
        metadata.as_object_mut().map(|members| members.remove("namespace"));
    }
    object["apiVersion"] = kind.api_version().into();
    object["kind"] = kind.name().into();
    object["metadata"] = metadata;
    match kind {
        Kind::EndpointSlice => {
            let address = match object["addressType"].as_str() {
                Some("IPv4") => "10.1.2.3",
                Some("IPv6") => "fd00::3",
                _ => "example.com",
            };
            for endpoint in object.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten() {
                endpoint["addresses"] = json!([address]);
            }
        }
        Kind::Pod => {
            for list in ["/spec/containers", "/spec/initContainers"] {
                for container in object.pointer_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
                {
                    let ports = container.get_mut("ports").and_then(Value::as_array_mut);
                    for (at, port) in ports.into_iter().flatten().enumerate() {
                        port["name"] = format!("port-{at}").into();
                    }
                }
            }
        }
        _ => {}
    }
    object
}

impl Random {
    fn value(&mut self, node: &Node) -> Value {
        match &node.shape {
            Shape::Object { fields, .. } => {
                let mut members = Map::new();
                for field in fields {
                    if field.required || self.all || self.below(2) == 0 {
                        members.insert(field.name.to_owned(), self.value(SCHEMAS.node(field.node)));
                    }
                }
                Value::Object(members)
            }
            Shape::Map { key, value } => {
                let key = strings(|text| key.check(text).is_ok() && !text.is_empty());
                let count = if self.all { 1 } else { self.below(3) };
                let mut member = |_| (self.one(&key).to_owned(), self.value(SCHEMAS.node(*value)));
                Value::Object((0..count).map(&mut member).collect())
            }
            Shape::List(item) => {
                let least = node.min.unwrap_or(if self.all { 1 } else { 0 }).max(i64::from(self.all));
                let most = node.max.unwrap_or(2).min(least + 1);
                let count = usize::try_from(most - least).map_or(0, |more| self.below(more + 1));
                let count = usize::try_from(least.min(most)).unwrap_or_default() + count;
                Value::Array((0..count).map(|_| self.value(SCHEMAS.node(*item))).collect())
            }
            Shape::String => {
                if !node.words.is_empty() {
                    return self.one(&node.words).into();
                }
                let good = strings(|text| node.takes(text));
                assert!(
                    !good.is_empty(),
                    "no string for {:?}",
                    node.pattern.as_ref().map(|pattern| pattern.text)
                );
                let filled: Vec<&str> = good.iter().copied().filter(|text| !text.is_empty()).collect();
                self.one(if self.all { &filled } else { &good }).into()
            }
            Shape::Integer => {
                let (from, to) = node.range();
                let middle = if (from..=to).contains(&7) { 7 } else { from };
                if self.all { middle.max(1).into() } else { self.one(&[from, to, middle]).into() }
            }
            Shape::Boolean => (self.all || self.below(2) == 0).into(),
            Shape::IntOrString => match self.below(2) {
                0 => 8080.into(),
                _ => "http".into(),
            },
            Shape::AnyObject => json!({"@type": "x", "a": [1, {"b": "c"}]}),
            Shape::Undecided => Value::Null,
        }
    }
}

/// Strings, of which each format and pattern accepts some and refuses others.
const STRINGS: [&str; 17] = [
    "",
    "a",
    "http",
    "80",
    "group-1",
    "Ready",
    "cilium.io/Ready",
    "example.com",
    "10.0.0.1",
    "fd00::1",
    "10.0.0.0/8",
    "fd00::/64",
    "2026-11-22T10:00:00Z",
    "65000:100",
    "1:2:3",
    "text of several words",
    "\u{7f}!/-",
];

fn strings(good: impl Fn(&str) -> bool) -> Vec<&'static str> {
    STRINGS.into_iter().filter(|text| good(text)).collect()
}

/// The location of a value, as a display path and as a JSON pointer.
#[derive(Default, Clone)]
struct Place {
    path: String,
    pointer: String,
}

impl Place {
    fn enter(&mut self, name: &str, then: impl FnOnce(&mut Place)) {
        let outside = self.clone();
        push_member(&mut self.path, name);
        self.pointer = format!("{}/{}", self.pointer, name.replace('~', "~0").replace('/', "~1"));
        then(self);
        *self = outside;
    }

    fn item(&mut self, at: usize, then: impl FnOnce(&mut Place)) {
        let outside = self.clone();
        self.path = format!("{}[{at}]", self.path);
        self.pointer = format!("{}/{at}", self.pointer);
        then(self);
        *self = outside;
    }
}

struct Mutants(Vec<Mutant>);

impl Mutants {
    fn replace(&mut self, place: &Place, fault: &'static str, value: Value) {
        self.0.push(Mutant { fault, path: place.path.clone(), pointer: place.pointer.clone(), value });
    }

    /// Adds mutants with an unknown member.
    fn unknown(&mut self, place: &Place) {
        let mut path = place.path.clone();
        push_member(&mut path, UNKNOWN);
        self.0.push(Mutant {
            fault: "an unknown field",
            path,
            pointer: place.pointer.clone(),
            value: 1.into(),
        });
    }

    fn member(&mut self, place: &mut Place, required: bool, node: usize, value: &Value) {
        if value.is_null() {
            return;
        }
        if required {
            self.replace(place, "nothing that has to be there", Value::Null);
        }
        self.value(place, SCHEMAS.node(node), value);
    }

    fn value(&mut self, place: &mut Place, node: &Node, value: &Value) {
        match (&node.shape, value) {
            (Shape::Object { fields, more }, Value::Object(members)) => {
                self.replace(place, "no object", json!([]));
                if more.is_none() {
                    self.unknown(place);
                }
                for field in fields {
                    let value = members.get(field.name).unwrap_or(&Value::Null);
                    place.enter(field.name, |place| self.member(place, field.required, field.node, value));
                }
            }
            (Shape::Map { value, .. }, Value::Object(members)) => {
                self.replace(place, "no map", json!("x"));
                if let Some((name, member)) = members.iter().next() {
                    place.enter(name, |place| self.value(place, SCHEMAS.node(*value), member));
                }
            }
            (Shape::List(item), Value::Array(items)) => {
                self.replace(place, "no list", json!({"a": 1}));
                let first = || items.first().cloned().unwrap_or_else(|| json!("a"));
                if let Some(most) = node.max.and_then(|most| usize::try_from(most).ok()) {
                    self.replace(place, "too many items", vec![first(); most + 1].into());
                }
                if node.min.is_some_and(|least| least > 0) {
                    self.replace(place, "too few items", json!([]));
                }
                if let Some(first) = items.first() {
                    place.item(0, |place| {
                        self.replace(place, "nothing in a list", Value::Null);
                        self.value(place, SCHEMAS.node(*item), first);
                    });
                }
            }
            (Shape::String, _) => self.text(place, node),
            (Shape::Integer, _) => {
                let (from, to) = node.range();
                self.replace(place, "no number", json!("x"));
                self.replace(place, "a fraction", json!(7.5));
                [from.checked_sub(1), to.checked_add(1)].into_iter().flatten().for_each(|number| {
                    self.replace(place, "a number out of range", number.into());
                });
            }
            (Shape::Boolean, _) => self.replace(place, "no boolean", json!("yes")),
            (Shape::IntOrString, _) => {
                self.replace(place, "no number and no string", json!(true));
                self.replace(place, "a number out of range", json!(1u64 << 40));
            }
            (Shape::AnyObject, _) => self.replace(place, "no object", json!(5)),
            _ => {}
        }
    }

    fn text(&mut self, place: &Place, node: &Node) {
        self.replace(place, "no string", json!(7));
        if !node.words.is_empty() {
            self.replace(place, "no such word", json!("no-such-word"));
        }
        if let Some(bad) = strings(|text| !node.takes(text)).last() {
            self.replace(place, "a bad string", json!(bad));
        }
        if let Some(most) = node.max.and_then(|most| usize::try_from(most).ok()) {
            self.replace(place, "a long string", "a".repeat(most + 1).into());
        }
    }
}

impl Node {
    /// Whether a string is valid.
    fn takes(&self, text: &str) -> bool {
        let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        let longer =
            self.min.is_none_or(|least| length >= least) && self.max.is_none_or(|most| length <= most);
        let good = longer
            && self.format.check(text).is_ok()
            && self.pattern.as_ref().is_none_or(|pattern| pattern.matches(text));
        let known = self.words.is_empty() || self.words.contains(&text);
        known && good || text.is_empty() && self.or_empty
    }

    /// Returns the range of valid numbers.
    fn range(&self) -> (i64, i64) {
        let (from, to) = self.format.range();
        (self.min.unwrap_or(from), self.max.unwrap_or(to))
    }
}

#[cfg(test)]
mod tests;
