//! A walk through a manifest that knows where it is and collects what is wrong.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::str::FromStr;

use serde_json::{Map, Value};

use crate::{Problem, Refusal};

/// Faults that are told of one manifest; the rest is counted.
const MAX_PROBLEMS: usize = 20;

/// Where a field is, from the end to the beginning.
#[derive(Clone, Copy)]
enum Path<'p> {
    Root,
    Member(&'p Path<'p>, &'p str),
    Item(&'p Path<'p>, usize),
}

impl Path<'_> {
    fn write(&self, out: &mut String) {
        match self {
            Path::Root => {}
            Path::Member(parent, name) => {
                parent.write(out);
                k8s_types::push_member(out, name);
            }
            Path::Item(parent, at) => {
                parent.write(out);
                _ = write!(out, "[{at}]");
            }
        }
    }
}

/// A value that may be there, its path, and where faults go. Absent and `null` are the same, as in Kubernetes.
#[derive(Clone, Copy)]
pub(crate) struct Field<'a> {
    value: Option<&'a Value>,
    path: Path<'a>,
    problems: &'a RefCell<Vec<Problem>>,
}

/// Decodes a manifest: all that `read` finds wrong makes it refused.
pub(crate) fn decode<T>(manifest: &Value, read: impl FnOnce(Field<'_>) -> T) -> Result<T, Refusal> {
    let problems = RefCell::new(Vec::new());
    let decoded = read(Field { value: Some(manifest), path: Path::Root, problems: &problems });
    let mut problems = problems.into_inner();
    if problems.is_empty() {
        return Ok(decoded);
    }
    if let Some(more) = problems.len().checked_sub(MAX_PROBLEMS).filter(|&more| more > 0) {
        problems.truncate(MAX_PROBLEMS);
        problems.push(Problem::new("", format_args!("and {more} faults more")));
    }
    Err(Refusal(problems))
}

impl<'a> Field<'a> {
    /// Reports a fault here.
    pub(crate) fn wrong(&self, reason: impl std::fmt::Display) {
        let mut path = String::new();
        self.path.write(&mut path);
        let problem = Problem::new(path, reason);
        let mut problems = self.problems.borrow_mut();
        if problems.last() != Some(&problem) {
            problems.push(problem);
        }
    }

    fn unexpected(&self, expected: &str, found: &Value) {
        let remedy = match found {
            Value::Bool(_) | Value::Number(_) if expected == "a string" => "; put it in quotes",
            _ => "",
        };
        self.wrong(format_args!("expected {expected}, found {}{remedy}", shown(found)));
    }

    pub(crate) fn present(&self) -> bool {
        self.value.is_some()
    }

    fn at(&self, value: Option<&'a Value>, path: Path<'a>) -> Field<'a> {
        Field { value: value.filter(|value| !value.is_null()), path, problems: self.problems }
    }

    /// A member of this object; absent if this is no object, which [`object`](Self::object) reports.
    pub(crate) fn get<'s>(&'s self, name: &'s str) -> Field<'s> {
        self.at(self.value.and_then(|value| value.get(name)), Path::Member(&self.path, name))
    }

    /// The members; a fault if this is there and no object.
    pub(crate) fn object(&self) -> Option<&'a Map<String, Value>> {
        match self.value? {
            Value::Object(members) => Some(members),
            other => {
                self.unexpected("an object", other);
                None
            }
        }
    }

    /// The items in order; a fault if this is there and no list.
    pub(crate) fn each<T>(&self, mut read: impl FnMut(Field<'_>) -> T) -> Vec<T> {
        match self.value {
            None => Vec::new(),
            Some(Value::Array(items)) => {
                let item =
                    |(at, item)| read(Field { value: Some(item), path: Path::Item(&self.path, at), ..*self });
                items.iter().enumerate().map(item).collect()
            }
            Some(other) => {
                self.unexpected("a list", other);
                Vec::new()
            }
        }
    }

    pub(crate) fn string(&self) -> Option<&'a str> {
        match self.value? {
            Value::String(text) => Some(text),
            other => {
                self.unexpected("a string", other);
                None
            }
        }
    }

    pub(crate) fn boolean(&self) -> Option<bool> {
        match self.value? {
            Value::Bool(value) => Some(*value),
            other => {
                self.unexpected("true or false", other);
                None
            }
        }
    }

    pub(crate) fn integer(&self, from: i64, to: i64) -> Option<i64> {
        let value = self.value?;
        match value.as_i64().filter(|number| (from..=to).contains(number)) {
            Some(number) => Some(number),
            None => {
                self.unexpected(&format!("a whole number from {from} to {to}"), value);
                None
            }
        }
    }

    /// A port's number.
    pub(crate) fn port(&self) -> Option<u16> {
        self.integer(1, 65535).and_then(|port| u16::try_from(port).ok())
    }

    /// A string that a rule allows.
    pub(crate) fn named(&self, rule: fn(&str) -> Result<(), &'static str>) -> Option<&'a str> {
        let text = self.string()?;
        match rule(text) {
            Ok(()) => Some(text),
            Err(right) => {
                self.wrong(format_args!("{text:?} is wrong; give {right}"));
                None
            }
        }
    }

    /// A string that can be read as something.
    pub(crate) fn parsed<T: FromStr>(&self, right: &str) -> Option<T> {
        let text = self.string()?;
        match text.parse() {
            Ok(value) => Some(value),
            Err(_) => {
                self.wrong(format_args!("{text:?} is wrong; give {right}"));
                None
            }
        }
    }

    /// One of several words.
    pub(crate) fn one_of(&self, words: &[&'static str]) -> Option<&'static str> {
        let text = self.string()?;
        match words.iter().find(|&&word| word == text) {
            Some(word) => Some(word),
            None => {
                self.wrong(format_args!("{text:?} is wrong; give one of {}", words.join(", ")));
                None
            }
        }
    }

    /// The value, and a fault if there is none.
    pub(crate) fn required<T>(&self, read: impl FnOnce(&Self) -> Option<T>) -> Option<T> {
        if !self.present() {
            self.wrong("is missing");
        }
        read(self)
    }

    /// An object whose members are all strings, with rules for keys and values.
    pub(crate) fn strings(
        &self,
        key_rule: fn(&str) -> Result<(), &'static str>,
        value_rule: fn(&str) -> Result<(), &'static str>,
    ) -> BTreeMap<String, String> {
        let mut strings = BTreeMap::new();
        for name in self.object().into_iter().flat_map(Map::keys) {
            let member = self.get(name);
            if let Err(right) = key_rule(name) {
                member.wrong(format_args!("{name:?} is wrong as a key; give {right}"));
            }
            // A key with nothing behind it is the empty string, as the API server takes it.
            let value = if member.present() { member.named(value_rule) } else { Some("") };
            strings.extend(value.map(|value| (name.clone(), value.to_owned())));
        }
        strings
    }

    /// Reports members that are none of these.
    pub(crate) fn only(&self, known: &[&str]) {
        for name in self.object().into_iter().flat_map(Map::keys) {
            if !known.contains(&name.as_str()) {
                match nearest(name, known) {
                    Some(near) => self.get(name).wrong(format_args!("is no field; did you mean {near}?")),
                    None => self.get(name).wrong("is no field; remove it"),
                }
            }
        }
    }

    /// Reports members that are none of these but look like one of them: a slip of the pen in a field that counts is a
    /// fault, a field of which this agent has no need is not.
    pub(crate) fn no_slips(&self, known: &[&str], others: &[&str]) {
        for name in self.object().into_iter().flat_map(Map::keys) {
            if !known.contains(&name.as_str())
                && !others.contains(&name.as_str())
                && let Some(near) = nearest(name, known)
            {
                self.get(name).wrong(format_args!("is no field; did you mean {near}?"));
            }
        }
    }
}

/// A value in an error text: short, whatever it is.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) if text.chars().count() > 60 => {
            format!("{:?}...", text.chars().take(60).collect::<String>())
        }
        Value::String(text) => format!("{text:?}"),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// The known name that differs by case, or by at most two letters.
pub(crate) fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let limit = if name.len() < 5 { 1 } else { 2 };
    let distance = |other: &&&str| edits(name, other);
    known.iter().min_by_key(distance).filter(|other| distance(other) <= limit).copied()
}

/// How many letters are to be added, removed, replaced or swapped with their neighbour; their case does not matter.
fn edits(a: &str, b: &str) -> usize {
    let letters = |text: &str| text.chars().take(64).map(|c| c.to_ascii_lowercase()).collect::<Vec<char>>();
    let (a, b) = (letters(a), letters(b));
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults<T: std::fmt::Debug>(manifest: Value, read: impl FnOnce(Field<'_>) -> T) -> String {
        decode(&manifest, read).unwrap_err().to_string()
    }

    #[test]
    fn faults_name_their_path_and_the_remedy() {
        let manifest =
            json!({"spec": {"ports": [{"port": 80}, {"port": 0}], "a/b": {"c": true}, "list": {}}});
        assert_eq!(
            faults(manifest.clone(), |f| f.get("spec").get("ports").each(|p| p.get("port").port())),
            "spec.ports[1].port: expected a whole number from 1 to 65535, found 0"
        );
        assert_eq!(
            faults(manifest.clone(), |f| f.get("spec").get("a/b").get("c").string().map(str::to_owned)),
            "spec[\"a/b\"].c: expected a string, found true; put it in quotes"
        );
        assert_eq!(
            faults(manifest.clone(), |f| f.get("spec").get("list").each(|_| ())),
            "spec.list: expected a list, found an object"
        );
        assert_eq!(
            faults(manifest, |f| f.get("kind").required(Field::string).map(str::to_owned)),
            "kind: is missing"
        );
    }

    #[test]
    fn slips_of_the_pen_are_found() {
        let known = ["hostNetwork", "containers"];
        assert_eq!(
            faults(json!({"hostNetwrok": true}), |f| f.no_slips(&known, &[])),
            "hostNetwrok: is no field; did you mean hostNetwork?"
        );
        assert_eq!(
            faults(json!({"Containers": [], "dnsPolicy": ""}), |f| f.only(&known)),
            "Containers: is no field; did you mean containers?; dnsPolicy: is no field; remove it"
        );
        decode(&json!({"dnsPolicy": "", "hostIPC": true}), |f| f.no_slips(&known, &[])).unwrap();
    }

    #[test]
    fn many_faults_are_counted() {
        let many: Vec<Value> = (0..1000).map(|n| json!(n)).collect();
        let Refusal(problems) = decode(&json!(many), |f| f.each(|item| item.boolean())).unwrap_err();
        assert_eq!(problems.len(), MAX_PROBLEMS + 1);
        assert_eq!(problems[MAX_PROBLEMS].reason, "and 980 faults more");
    }
}
