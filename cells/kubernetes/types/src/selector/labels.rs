//! Requirements on labels, of strings and of `LabelSelector` objects.

use std::str::FromStr;

use super::{SelectorError, parser};
use crate::{LabelSelector, names};

/// Requirements on labels, all of which must hold; an empty selector selects every object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelRequirements(pub(super) Vec<Requirement>);

/// A requirement on the label of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Requirement {
    pub(super) key: String,
    pub(super) condition: Condition,
}

/// A requirement's condition. Only strings can order values; objects have no such operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Condition {
    Test(Test),
    GreaterThan(i64),
    LessThan(i64),
}

/// A test of a label: an operator of `LabelSelector` with its values.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Test {
    /// The label has this value (`matchLabels`).
    Equals(String),
    /// The label has one of these values.
    In(Vec<String>),
    /// The label is missing or has none of these values.
    NotIn(Vec<String>),
    /// The label exists.
    Exists,
    /// The label is missing.
    DoesNotExist,
}

/// An invalid requirement of `matchExpressions`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OperatorError {
    /// `In` and `NotIn` need at least one value.
    #[error("has no values")]
    NoValues,
    /// `Exists` and `DoesNotExist` take no values.
    #[error("must have no values")]
    UnexpectedValues,
    /// The operator does not exist.
    #[error("is no operator: use In, NotIn, Exists or DoesNotExist")]
    UnknownOperator,
}

impl LabelRequirements {
    /// Whether an object is selected, with its labels returned by `label`. Linear in the number of requirements.
    pub fn matches<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        self.0.iter().all(|requirement| requirement.condition.holds(label(&requirement.key)))
    }

    /// Whether there are no requirements.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reads the form of requests and annotations: `KEY`, `!KEY`, `KEY=VALUE`, `KEY!=VALUE`, `KEY in (VALUE,...)`,
/// `KEY notin (VALUE,...)`, `KEY>NUMBER`, `KEY<NUMBER` between commas.
impl FromStr for LabelRequirements {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<LabelRequirements, SelectorError> {
        parser::parse(text).map(LabelRequirements)
    }
}

impl TryFrom<&LabelSelector> for LabelRequirements {
    type Error = SelectorError;

    fn try_from(selector: &LabelSelector) -> Result<LabelRequirements, SelectorError> {
        let at = |field: &str| {
            let field = field.to_owned();
            move |error: SelectorError| SelectorError(format!("{field}: {error}"))
        };
        let mut requirements = Vec::new();
        for (key, value) in selector.match_labels.iter() {
            let test = Test::Equals(value.to_string());
            requirements.push(Requirement::new(key, Condition::Test(test)).map_err(at("matchLabels"))?);
        }
        for expression in &selector.match_expressions {
            let (key, operator) = (&*expression.key, &*expression.operator);
            let values = expression.values.iter().map(ToString::to_string).collect();
            let test = Test::from_operator(operator, values)
                .map_err(|error| SelectorError(format!("{operator} of {key:?} {error}")));
            let requirement = test.and_then(|test| Requirement::new(key, Condition::Test(test)));
            requirements.push(requirement.map_err(at("matchExpressions"))?);
        }
        Ok(LabelRequirements(requirements))
    }
}

impl Requirement {
    /// Validates key and values; the error describes valid ones.
    pub(super) fn new(key: &str, condition: Condition) -> Result<Requirement, SelectorError> {
        names::qualified_name(key)
            .map_err(|right| SelectorError(format!("{key:?} is wrong as a key; give {right}")))?;
        if let Condition::Test(test) = &condition {
            for value in test.values() {
                names::label_value(value)
                    .map_err(|right| SelectorError(format!("{value:?} of {key:?} is wrong; give {right}")))?;
            }
        }
        Ok(Requirement { key: key.to_owned(), condition })
    }
}

impl Condition {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Condition::Test(test) => test.holds(value),
            Condition::GreaterThan(bound) => number().is_some_and(|number| number > *bound),
            Condition::LessThan(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

impl Test {
    /// Returns the test of an operator of `matchExpressions` with its values.
    pub fn from_operator(operator: &str, values: Vec<String>) -> Result<Test, OperatorError> {
        match (operator, values.is_empty()) {
            ("In" | "NotIn", true) => Err(OperatorError::NoValues),
            ("Exists" | "DoesNotExist", false) => Err(OperatorError::UnexpectedValues),
            ("In", _) => Ok(Test::In(values)),
            ("NotIn", _) => Ok(Test::NotIn(values)),
            ("Exists", _) => Ok(Test::Exists),
            ("DoesNotExist", _) => Ok(Test::DoesNotExist),
            _ => Err(OperatorError::UnknownOperator),
        }
    }

    /// Whether a label of this value, or its absence, passes.
    pub fn holds(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (Test::Equals(expected), Some(value)) => expected == value,
            (Test::In(values), Some(value)) => values.iter().any(|one| one == value),
            (Test::NotIn(values), Some(value)) => values.iter().all(|one| one != value),
            (Test::Exists, Some(_)) | (Test::NotIn(_) | Test::DoesNotExist, None) => true,
            (Test::DoesNotExist, Some(_)) | (Test::Equals(_) | Test::In(_) | Test::Exists, None) => false,
        }
    }

    /// Returns the operator's name in `matchExpressions`.
    pub fn operator(&self) -> &'static str {
        match self {
            Test::Equals(_) | Test::In(_) => "In",
            Test::NotIn(_) => "NotIn",
            Test::Exists => "Exists",
            Test::DoesNotExist => "DoesNotExist",
        }
    }

    /// Returns the values that the operator compares with.
    pub fn values(&self) -> &[String] {
        match self {
            Test::Equals(value) => std::slice::from_ref(value),
            Test::In(values) | Test::NotIn(values) => values,
            Test::Exists | Test::DoesNotExist => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(key: &str) -> Option<&'static str> {
        [("app", "web"), ("k8s.io/tier", "front"), ("edge", ""), ("cores", "8")]
            .into_iter()
            .find_map(|(name, value)| (name == key).then_some(value))
    }

    #[test]
    fn strings_select_as_with_kubectl() {
        for (text, selected) in [
            ("", true),
            (" ", true),
            ("app=web", true),
            ("app==web", true),
            ("app = web , k8s.io/tier", true),
            ("app=db", false),
            ("none=web", false),
            ("edge=", true),
            ("edge=,app=web", true),
            ("none=", false),
            ("app!=db,none!=x", true),
            ("app!=web", false),
            ("!none", true),
            ("! app", false),
            ("app in (db, web),!none", true),
            ("app in (db)", false),
            ("none in (db)", false),
            ("edge in (,a)", true),
            ("edge in (a,)", true),
            ("app notin (db),none notin (x)", true),
            ("app notin (web,db)", false),
            ("in in (in)", false),
            ("cores>7,cores<9", true),
            ("cores > 8", false),
            ("app>1", false),
            ("none<1", false),
        ] {
            assert_eq!(text.parse::<LabelRequirements>().unwrap().matches(label), selected, "{text}");
        }
    }

    #[test]
    fn string_errors_are_those_of_apimachinery() {
        for (text, error) in [
            ("=web", "found '=', expected: !, identifier, or 'end of string'"),
            ("app=web,", "found '', expected: identifier after ','"),
            ("!a=b", "found '=', expected: ',' or 'end of string'"),
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
            (
                "app of (db)",
                "unable to parse requirement: found 'of', expected: in, notin, =, ==, !=, gt, lt",
            ),
            ("app in db", "unable to parse requirement: found 'db' expected: '('"),
            ("app in (db", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("app in (=)", "unable to parse requirement: found '=', expected: ',', ')' or identifier"),
            (
                "app in ()",
                "unable to parse requirement: values: Invalid value: []: for 'in', 'notin' operators, values set can't \
                 be empty",
            ),
            ("a=!", "unable to parse requirement: found '!', expected: identifier"),
            (
                "cores>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must \
                 be an integer",
            ),
            ("!", "unable to parse requirement: found '', expected: identifier"),
        ] {
            assert_eq!(text.parse::<LabelRequirements>().unwrap_err().to_string(), error, "{text}");
        }
        for (text, part) in
            [("a/b/c=d", "\"a/b/c\" is wrong as a key; give"), ("a=-b", "\"-b\" of \"a\" is wrong; give")]
        {
            let error = text.parse::<LabelRequirements>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn objects_select_as_in_manifests() {
        let matches = |text: &str| {
            let selector: LabelSelector = serde_json::from_str(text).unwrap();
            LabelRequirements::try_from(&selector).map(|requirements| requirements.matches(label))
        };
        let expression = |text: &str| matches(&format!(r#"{{"matchExpressions":[{text}]}}"#));
        assert_eq!(matches("{}"), Ok(true));
        assert_eq!(matches(r#"{"matchLabels":{"app":"web","edge":""}}"#), Ok(true));
        assert_eq!(matches(r#"{"matchLabels":{"app":"web","disk":""}}"#), Ok(false));
        for (text, selected) in [
            (r#"{"key":"app","operator":"In","values":["db","web"]}"#, true),
            (r#"{"key":"app","operator":"NotIn","values":["web"]}"#, false),
            (r#"{"key":"disk","operator":"NotIn","values":["web"]}"#, true),
            (r#"{"key":"edge","operator":"Exists"}"#, true),
            (r#"{"key":"edge","operator":"DoesNotExist"}"#, false),
        ] {
            assert_eq!(expression(text), Ok(selected), "{text}");
        }
        for (text, error) in [
            (
                r#"{"key":"app","operator":"Is","values":["a"]}"#,
                "matchExpressions: Is of \"app\" is no operator: use In, NotIn, Exists or DoesNotExist",
            ),
            (r#"{"key":"app","operator":"In"}"#, "matchExpressions: In of \"app\" has no values"),
            (
                r#"{"key":"app","operator":"Exists","values":["a"]}"#,
                "matchExpressions: Exists of \"app\" must have no values",
            ),
        ] {
            assert_eq!(expression(text).unwrap_err().to_string(), error);
        }
        let error = matches(r#"{"matchLabels":{"a b":"c"}}"#).unwrap_err().to_string();
        assert!(error.starts_with("matchLabels: \"a b\" is wrong as a key; give"), "{error}");
    }
}
