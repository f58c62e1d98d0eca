//! Streaming of the items of lists in a JSON text: a file of many objects takes only the memory of one item.

use serde::Deserialize;
use serde_json::{Deserializer, Value};

use super::json::Node;

/// An item of a list.
#[derive(Debug)]
pub struct JsonItem<'n, 't> {
    /// The name of the list.
    pub list: &'n str,
    /// Its index in the list.
    pub at: usize,
    /// The parsed item.
    pub value: Value,
    /// The text of the item.
    pub text: &'t str,
}

/// Visits, in order, the items of the lists with these names in the text's only object. Returns false if the text
/// contains anything else or is malformed (which [`documents`](super::documents) then reports), or if `visit` returns
/// false; items that were visited before must be discarded.
///
/// ```
/// let mut items = Vec::new();
/// let visit = |item: k8s_types::JsonItem<'_, '_>| {
///     items.push(format!("{}[{}]: {} {}", item.list, item.at, item.value["a"], item.text));
///     true
/// };
/// let text = r#"{"some": [{"a": 1}, {"a" :2}], "none": []}"#;
/// assert!(k8s_types::json_items(text, &["none", "some"], visit));
/// assert_eq!(items, [r#"some[0]: 1 {"a": 1}"#, r#"some[1]: 2 {"a" :2}"#]);
/// assert!(!k8s_types::json_items(text, &["some"], |_| true));
/// ```
pub fn json_items<'t>(text: &'t str, lists: &[&str], visit: impl FnMut(JsonItem<'_, 't>) -> bool) -> bool {
    Reader { rest: text }.object(lists, visit).is_some_and(|Reader { rest }| blank(rest).is_empty())
}

/// The remaining text.
struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    fn object(
        mut self,
        lists: &[&str],
        mut visit: impl FnMut(JsonItem<'_, 't>) -> bool,
    ) -> Option<Reader<'t>> {
        let mut names: Vec<String> = Vec::new();
        self.sign('{')?;
        if self.sign('}').is_some() {
            return Some(self);
        }
        loop {
            let (name, _) = self.next::<String>()?;
            if names.contains(&name) || !lists.contains(&name.as_str()) {
                return None;
            }
            self.sign(':')?;
            self.list(&name, &mut visit)?;
            names.push(name);
            if self.sign(',').is_none() {
                return self.sign('}').map(|()| self);
            }
        }
    }

    fn list(&mut self, list: &str, visit: &mut impl FnMut(JsonItem<'_, 't>) -> bool) -> Option<()> {
        self.sign('[')?;
        if self.sign(']').is_some() {
            return Some(());
        }
        for at in 0.. {
            let (Node(value), text) = self.next::<Node>()?;
            if !visit(JsonItem { list, at, value, text }) {
                return None;
            }
            if self.sign(',').is_none() {
                break;
            }
        }
        self.sign(']')
    }

    /// Consumes a punctuation character.
    fn sign(&mut self, sign: char) -> Option<()> {
        self.rest = blank(self.rest).strip_prefix(sign)?;
        Some(())
    }

    /// Parses a value; returns it with its text.
    fn next<T: Deserialize<'t>>(&mut self) -> Option<(T, &'t str)> {
        let rest = blank(self.rest);
        let mut values = Deserializer::from_str(rest).into_iter::<T>();
        let value = values.next()?.ok()?;
        let (text, rest) = rest.split_at(values.byte_offset());
        self.rest = rest;
        Some((value, text))
    }
}

/// Skips JSON white space.
fn blank(text: &str) -> &str {
    text.trim_start_matches([' ', '\t', '\r', '\n'])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn items(text: &str) -> Option<Vec<(String, usize, Value)>> {
        let mut all = Vec::new();
        let visit = |JsonItem { list, at, value, text }: JsonItem<'_, '_>| {
            assert_eq!(serde_json::from_str::<Value>(text).unwrap(), value);
            all.push((list.to_owned(), at, value));
            true
        };
        json_items(text, &["a", "b"], visit).then_some(all)
    }

    #[test]
    fn items_come_in_order_with_the_names_of_their_lists() {
        let all = items(" {\"b\" : [1, {\"x\": []} ],\n\"a\":[ \"]\\u00e9\" , null]} \n").unwrap();
        let of = |name: &str, at, item| (name.to_owned(), at, item);
        assert_eq!(
            all,
            [
                of("b", 0, 1.into()),
                of("b", 1, json!({"x": []})),
                of("a", 0, "]\u{e9}".into()),
                of("a", 1, Value::Null)
            ]
        );
        assert_eq!(items("{}"), Some(Vec::new()));
        assert_eq!(items("{\"a\": [ ] }"), Some(Vec::new()));
    }

    #[test]
    fn all_other_texts_are_rejected() {
        for text in [
            "",
            "[]",
            "a: [1]",
            "{\"a\": [1]}{}",
            "{\"a\": [1],}",
            "{\"a\": [1,]}",
            "{\"a\": [1}",
            "{\"a\": [1 2]}",
            "{\"a\": [1]",
            "{\"a\" [1]}",
            "{\"a\": [1], \"c\": []}",
            "{\"a\": {}}",
            "{\"a\": null}",
            "{\"a\": [1], \"a\": []}",
            "{\"a\": [{\"x\": 1, \"x\": 2}]}",
            "{\"a\": [truex]}",
            "{a: [1]}",
            "{\"a\": [1]} # done",
        ] {
            assert_eq!(items(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_visitor_can_stop() {
        let mut seen = 0;
        let visit = |_: JsonItem<'_, '_>| {
            seen += 1;
            seen < 2
        };
        assert!(!json_items("{\"a\": [1, 2, 3]}", &["a"], visit));
        assert_eq!(seen, 2);
    }
}
