//! The string form of label selectors: lexer and parser with the grammar and the errors of apimachinery
//! (`pkg/labels/selector.go`).

use std::collections::BTreeSet;
use std::fmt;

use super::SelectorError;
use super::labels::{Condition, Requirement, Test};

/// The operators, in the order in which the error names them.
const OPERATORS: &str = "in, notin, =, ==, !=, gt, lt";

/// A token with its text. `in` and `notin` are operators only where one is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'t> {
    Identifier(&'t str),
    Symbol(&'t str),
    End,
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Token::Identifier(text) | Token::Symbol(text) => text,
            Token::End => "",
        })
    }
}

/// Parses a selector.
pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    let mut parser = Parser { rest: text };
    let mut requirements = Vec::new();
    loop {
        match parser.peek() {
            Token::Identifier(_) | Token::Symbol("!") => {}
            Token::End if requirements.is_empty() => return Ok(requirements),
            other if requirements.is_empty() => {
                return unexpected(other, "!, identifier, or 'end of string'");
            }
            other => return unexpected(other, "identifier after ','"),
        }
        let requirement = parser.requirement();
        let context = |error| SelectorError(format!("unable to parse requirement: {error}"));
        requirements.push(requirement.map_err(context)?);
        match parser.next() {
            Token::End => return Ok(requirements),
            Token::Symbol(",") => {}
            other => return unexpected(other, "',' or 'end of string'"),
        }
    }
}

fn unexpected<T>(found: Token<'_>, expected: &str) -> Result<T, SelectorError> {
    Err(SelectorError(format!("found '{found}', expected: {expected}")))
}

struct Parser<'t> {
    rest: &'t str,
}

impl<'t> Parser<'t> {
    /// Removes the next token from the text.
    fn next(&mut self) -> Token<'t> {
        let text = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let is_special = |c: char| "=!(),<>".contains(c);
        let symbol = ["==", "!=", "=", "!", "(", ")", ",", "<", ">"];
        let (token, length) = match symbol.into_iter().find(|symbol| text.starts_with(symbol)) {
            Some(symbol) => (Token::Symbol(&text[..symbol.len()]), symbol.len()),
            None => match text.find(|c: char| is_special(c) || " \t\r\n".contains(c)).unwrap_or(text.len()) {
                0 => (Token::End, 0),
                length => (Token::Identifier(&text[..length]), length),
            },
        };
        self.rest = &text[length..];
        token
    }

    fn peek(&self) -> Token<'t> {
        Parser { rest: self.rest }.next()
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let is_negated = self.peek() == Token::Symbol("!");
        if is_negated {
            self.next();
        }
        let key = match self.next() {
            Token::Identifier(key) => key,
            other => return unexpected(other, "identifier"),
        };
        if is_negated {
            return Requirement::new(key, Condition::Test(Test::DoesNotExist));
        }
        if matches!(self.peek(), Token::End | Token::Symbol(",")) {
            return Requirement::new(key, Condition::Test(Test::Exists));
        }
        let condition = match self.next() {
            Token::Identifier("in") => Condition::Test(Test::In(self.values()?)),
            Token::Identifier("notin") => Condition::Test(Test::NotIn(self.values()?)),
            Token::Symbol("=" | "==") => Condition::Test(Test::Equals(self.value()?.to_owned())),
            Token::Symbol("!=") => Condition::Test(Test::NotIn(vec![self.value()?.to_owned()])),
            Token::Symbol(">") => Condition::GreaterThan(number(self.value()?)?),
            Token::Symbol("<") => Condition::LessThan(number(self.value()?)?),
            other => return unexpected(other, OPERATORS),
        };
        Requirement::new(key, condition)
    }

    /// Parses a single value; a missing one is the empty value.
    fn value(&mut self) -> Result<&'t str, SelectorError> {
        if matches!(self.peek(), Token::End | Token::Symbol(",")) {
            return Ok("");
        }
        match self.next() {
            Token::Identifier(value) => Ok(value),
            other => unexpected(other, "identifier"),
        }
    }

    /// Parses values in parentheses, sorted; a missing one beside a comma is the empty value.
    fn values(&mut self) -> Result<Vec<String>, SelectorError> {
        match self.next() {
            Token::Symbol("(") => {}
            // Without a comma, as in apimachinery.
            other => return Err(SelectorError(format!("found '{other}' expected: '('"))),
        }
        match self.peek() {
            Token::Identifier(_) | Token::Symbol(",") => {}
            Token::Symbol(")") => {
                return Err(SelectorError(
                    "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"
                        .to_owned(),
                ));
            }
            other => return unexpected(other, "',', ')' or identifier"),
        }
        let mut values = BTreeSet::new();
        loop {
            let value = match self.peek() {
                Token::Identifier(value) => {
                    self.next();
                    value
                }
                _ => "",
            };
            values.insert(value.to_owned());
            match self.next() {
                Token::Symbol(",") => {}
                Token::Symbol(")") => return Ok(values.into_iter().collect()),
                other => return unexpected(other, "',' or ')'"),
            }
        }
    }
}

fn number(text: &str) -> Result<i64, SelectorError> {
    text.parse().map_err(|_| {
        SelectorError(format!(
            "values[0]: Invalid value: {text:?}: for 'Gt', 'Lt' operators, the value must be an integer"
        ))
    })
}
