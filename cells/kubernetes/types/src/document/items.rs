//! The items of lists in a JSON text one by one: a file of many objects takes no more memory than one of them.

use serde::Deserialize;
use serde_json::{Deserializer, Value};

use super::json::Node;

/// An item of a list.
#[derive(Debug)]
pub struct JsonItem<'n, 't> {
    /// The name of the list.
    pub list: &'n str,
    /// Its place in the list, from 0.
    pub at: usize,
    /// The parsed item.
    pub value: Value,
    /// How it is written.
    pub text: &'t str,
}

/// Visits the items of the lists that a text has under these names of its only object, in order. False if the text has
/// anything else, if `visit` returns false, or if something is wrong with the text, which
/// [`documents`](super::documents) then reports; what was visited before must be discarded.
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

/// The rest of a text.
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

    /// A sign that is no value.
    fn sign(&mut self, sign: char) -> Option<()> {
        self.rest = blank(self.rest).strip_prefix(sign)?;
        Some(())
    }

    /// A value with its text.
    fn next<T: Deserialize<'t>>(&mut self) -> Option<(T, &'t str)> {
        let rest = blank(self.rest);
        let mut values = Deserializer::from_str(rest).into_iter::<T>();
        let value = values.next()?.ok()?;
        let (text, rest) = rest.split_at(values.byte_offset());
        self.rest = rest;
        Some((value, text))
    }
}

/// The text behind the white space that JSON knows.
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
    fn everything_else_is_left_to_the_reader_of_documents() {
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
    fn the_visitor_may_end_it() {
        let mut seen = 0;
        let visit = |_: JsonItem<'_, '_>| {
            seen += 1;
            seen < 2
        };
        assert!(!json_items("{\"a\": [1, 2, 3]}", &["a"], visit));
        assert_eq!(seen, 2);
    }
}
