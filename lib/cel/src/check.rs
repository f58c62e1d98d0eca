//! The checker: names to fields, constants and variables; types of all parts.

use std::sync::Arc;

use jiff::tz::TimeZone;
use regex::Regex;

use crate::ast::{Expr, Kind, NewField};
use crate::error::{CompileError, Place};
use crate::function::{Function, Part, function, operator, result};
use crate::schema::{Field, Scalar, Schema};
use crate::types::Type;
use crate::value::Value;
use crate::zone;

/// The limit of a compiled pattern in bytes.
const PATTERN_SIZE: usize = 64 << 10;

/// A checked expression.
#[derive(Debug)]
pub(crate) enum Node {
    Constant(Constant),
    /// A variable by its place: the message, then those of macros around.
    Variable(usize),
    Field(Box<Node>, Field),
    Has(Box<Node>, Field),
    /// `has` of a key of a map, or of something unknown.
    HasKey(Box<Node>, String),
    Key(Box<Node>, String),
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    Conditional(Box<[Node; 3]>),
    Call(Function, Vec<Node>),
    Matches(Box<Node>, Regex),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
    /// A new message of a form, with its fields in the order of their numbers.
    Message(Scalar, Vec<(Field, Node)>),
    /// A part of a time in a zone.
    Zoned(Part, Box<Node>, TimeZone),
    Macro(Macro, Box<Node>, Vec<Node>),
}

/// A value without a lifetime that may be shared between threads.
#[derive(Clone, Debug)]
pub(crate) enum Constant {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
    Type(Arc<str>),
}

/// A macro over the elements of a list or the keys of a map. Its last parts are evaluated for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Macro {
    All,
    Exists,
    ExistsOne,
    /// The condition, if there are two parts, and the new value.
    Map,
    Filter,
}

/// The checker of an expression.
pub(crate) struct Checker<'a> {
    pub(crate) text: &'a str,
    pub(crate) schema: &'a Schema,
    /// The package in which names are searched first.
    pub(crate) package: &'a str,
    /// Variables in force: the message, then those of macros around.
    pub(crate) variables: Vec<(String, Type)>,
}

type Checked = Result<(Node, Type), CompileError>;

impl Checker<'_> {
    fn error(&self, place: Place, problem: impl Into<String>) -> CompileError {
        CompileError::new(self.text, place, problem)
    }

    /// Checks an expression; returns its type.
    pub(crate) fn check(&mut self, expr: &Expr) -> Checked {
        if let Some(found) = self.constant(expr) {
            return Ok(found);
        }
        match &expr.kind {
            Kind::Literal(value) => self.literal(value, expr.place),
            Kind::Name { name, is_absolute } => self.variable(name, *is_absolute, expr.place),
            Kind::Select { operand, field } => {
                let (node, of) = self.check(operand)?;
                self.select(node, of, field, expr.place)
            }
            Kind::Call { function, is_method, arguments } => {
                self.call(function, *is_method, arguments, expr.place)
            }
            Kind::Operator { symbol, operands } => self.operator(symbol, operands, expr.place),
            Kind::Conditional(parts) => {
                let condition = self.boolean(&parts[0])?;
                let (then, then_type) = self.check(&parts[1])?;
                let (other, other_type) = self.check(&parts[2])?;
                if !then_type.fits(&other_type) {
                    let problem = format!("the results of the condition are {then_type} and {other_type}");
                    return Err(self.error(expr.place, problem));
                }
                Ok((Node::Conditional(Box::new([condition, then, other])), then_type.join(other_type)))
            }
            Kind::List(list) => {
                let (nodes, types) = self.all(list)?;
                let element = types.into_iter().reduce(Type::join).unwrap_or(Type::Dyn);
                Ok((Node::List(nodes), Type::list(element)))
            }
            Kind::Map(entries) => self.map(entries),
            Kind::Message { name, is_absolute, fields } => {
                self.message(name, *is_absolute, fields, expr.place)
            }
        }
    }

    fn all(&mut self, list: &[Expr]) -> Result<(Vec<Node>, Vec<Type>), CompileError> {
        let checked: Result<Vec<_>, _> = list.iter().map(|expr| self.check(expr)).collect();
        Ok(checked?.into_iter().unzip())
    }

    fn boolean(&mut self, expr: &Expr) -> Result<Node, CompileError> {
        let (node, of) = self.check(expr)?;
        if of.fits(&Type::Bool) {
            Ok(node)
        } else {
            Err(self.error(expr.place, format!("{of} is no condition")))
        }
    }

    fn literal(&self, value: &Value<'static>, place: Place) -> Checked {
        let (constant, of) = match value {
            Value::Null => (Constant::Null, Type::Null),
            Value::Bool(value) => (Constant::Bool(*value), Type::Bool),
            Value::Int(value) => (Constant::Int(*value), Type::Int),
            Value::Uint(value) => (Constant::Uint(*value), Type::Uint),
            Value::Double(value) => (Constant::Double(*value), Type::Double),
            Value::String(text) => (Constant::String(text.as_ref().into()), Type::String),
            Value::Bytes(bytes) => (Constant::Bytes(bytes.as_ref().into()), Type::Bytes),
            _ => return Err(self.error(place, "this literal is unknown")),
        };
        Ok((Node::Constant(constant), of))
    }

    fn variable(&self, name: &str, is_absolute: bool, place: Place) -> Checked {
        // Variables of inner macros hide those of outer ones; only the message has an absolute name.
        let mut found = self.variables.iter().enumerate().rev().filter(|(at, _)| !is_absolute || *at == 0);
        if let Some((at, (_, of))) = found.find(|(_, (known, _))| known == name) {
            return Ok((Node::Variable(at), of.clone()));
        }
        const TYPES: [&str; 10] =
            ["bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type"];
        if TYPES.contains(&name) {
            return Ok((Node::Constant(Constant::Type(name.into())), Type::Meta));
        }
        Err(self.error(place, format!("there is no variable {name}")))
    }

    /// Returns the value of an enum, of a name with dots; `None` for other expressions.
    fn constant(&self, expr: &Expr) -> Option<(Node, Type)> {
        let (mut parts, mut at) = (Vec::new(), expr);
        let is_absolute = loop {
            match &at.kind {
                Kind::Select { operand, field } => {
                    parts.push(field.as_str());
                    at = operand;
                }
                Kind::Name { name, is_absolute } => {
                    parts.push(name);
                    if self.variables.iter().any(|(known, _)| known == name) {
                        return None;
                    }
                    break *is_absolute;
                }
                _ => return None,
            }
        };
        parts.reverse();
        let name = parts.join(".");
        let in_package = (!is_absolute).then(|| format!("{}.{name}", self.package));
        let names = in_package.into_iter().chain([name]);
        let mut types = names.clone().filter_map(|name| self.schema.find(&name).map(|_| name));
        if let Some(value) = names.clone().find_map(|name| self.schema.constant(&name)) {
            return Some((Node::Constant(Constant::Int(value.into())), Type::Int));
        }
        let name = types.next()?;
        Some((Node::Constant(Constant::Type(name.as_str().into())), Type::Meta))
    }

    fn field(&self, message: usize, name: &str, place: Place) -> Result<(Field, Type), CompileError> {
        let definition = self.schema.message(message);
        let field = definition.fields.iter().find(|field| field.name == name);
        let field =
            field.ok_or_else(|| self.error(place, format!("{} has no field {name}", definition.name)))?;
        let of = self.schema.type_of(field);
        let of = of.ok_or_else(|| {
            self.error(place, format!("the field {name} has a type that expressions cannot read"))
        })?;
        Ok((field.clone(), of))
    }

    fn select(&self, node: Node, of: Type, name: &str, place: Place) -> Checked {
        match of {
            Type::Message(message, _) => {
                let (field, of) = self.field(message, name, place)?;
                Ok((Node::Field(Box::new(node), field), of))
            }
            Type::Map(key, value) if Type::String.fits(&key) => {
                Ok((Node::Key(Box::new(node), name.to_owned()), *value))
            }
            Type::Dyn => Ok((Node::Key(Box::new(node), name.to_owned()), Type::Dyn)),
            of => Err(self.error(place, format!("{of} has no fields"))),
        }
    }

    fn operator(&mut self, symbol: &str, operands: &[Expr], place: Place) -> Checked {
        if let ("&&" | "||", [one, other]) = (symbol, operands) {
            let pair = Box::new([self.boolean(one)?, self.boolean(other)?]);
            return Ok((if symbol == "&&" { Node::And(pair) } else { Node::Or(pair) }, Type::Bool));
        }
        let (nodes, types) = self.all(operands)?;
        let found = operator(symbol).and_then(|function| Some((function, result(function, &types)?)));
        match found {
            Some((function, of)) => Ok((Node::Call(function, nodes), of)),
            None => {
                let types: Vec<String> = types.iter().map(Type::to_string).collect();
                let problem = format!(
                    "the operator {} does not take {}",
                    symbol.trim_end_matches('x'),
                    types.join(" and ")
                );
                Err(self.error(place, problem))
            }
        }
    }

    fn call(&mut self, name: &str, is_method: bool, arguments: &[Expr], place: Place) -> Checked {
        match (name, is_method, arguments) {
            ("has", false, [Expr { kind: Kind::Select { operand, field }, place, .. }]) => {
                return self.has(operand, field, *place);
            }
            ("has", false, _) => return Err(self.error(place, "has takes a field: has(a.b)")),
            ("matches", true, [text, pattern]) => return self.matches(text, pattern),
            (_, true, [time, Expr { kind: Kind::Literal(Value::String(zone)), place, .. }]) => {
                if let Some(Function::Part(part)) = function(name, is_method) {
                    return self.zoned(part, name, time, (zone, *place));
                }
            }
            _ => {}
        }
        if let Some(of) = macro_of(name, arguments.len()).filter(|_| is_method) {
            return self.comprehension(of, arguments);
        }
        let (nodes, types) = self.all(arguments)?;
        let known = function(name, is_method);
        match known.and_then(|function| Some((function, result(function, &types)?))) {
            Some((function, of)) => Ok((Node::Call(function, nodes), of)),
            None => {
                let types: Vec<String> = types.iter().map(Type::to_string).collect();
                let problem = match known {
                    Some(_) => format!("{name} does not take {}", types.join(", ")),
                    None => format!("there is no function {name}"),
                };
                Err(self.error(place, problem))
            }
        }
    }

    fn has(&mut self, operand: &Expr, name: &str, place: Place) -> Checked {
        let (node, of) = self.check(operand)?;
        let node = match of {
            Type::Message(message, _) => Node::Has(Box::new(node), self.field(message, name, place)?.0),
            Type::Map(..) | Type::Dyn => Node::HasKey(Box::new(node), name.to_owned()),
            of => return Err(self.error(place, format!("{of} has no fields"))),
        };
        Ok((node, Type::Bool))
    }

    /// A zone is read once, so that an evaluation opens no file.
    fn zoned(&mut self, part: Part, name: &str, time: &Expr, (zone, place): (&str, Place)) -> Checked {
        let (node, of) = self.check(time)?;
        if !of.fits(&Type::Timestamp) {
            return Err(self.error(time.place, format!("{name} with a zone does not take {of}")));
        }
        let zone = zone::find(zone).map_err(|error| self.error(place, error.to_string()))?;
        Ok((Node::Zoned(part, Box::new(node), zone), Type::Int))
    }

    /// A pattern is compiled once, so that its cost is no part of an evaluation.
    fn matches(&mut self, text: &Expr, pattern: &Expr) -> Checked {
        let (node, of) = self.check(text)?;
        if !of.fits(&Type::String) {
            return Err(self.error(text.place, format!("matches does not take {of}")));
        }
        let Kind::Literal(Value::String(literal)) = &pattern.kind else {
            return Err(self.error(pattern.place, "the pattern of matches is no literal"));
        };
        let compiled = regex::RegexBuilder::new(literal).size_limit(PATTERN_SIZE).build();
        let regex = compiled
            .map_err(|error| self.error(pattern.place, format!("the pattern is invalid: {error}")))?;
        Ok((Node::Matches(Box::new(node), regex), Type::Bool))
    }

    fn comprehension(&mut self, of: Macro, arguments: &[Expr]) -> Checked {
        let [range, variable, parts @ ..] = arguments else {
            return Err(self.error(Place(0), "a macro lacks its variable"));
        };
        let (range_node, range_type) = self.check(range)?;
        let element = match range_type {
            Type::List(element) => *element,
            Type::Map(key, _) => *key,
            Type::Dyn => Type::Dyn,
            other => return Err(self.error(range.place, format!("{other} has no elements"))),
        };
        let Kind::Name { name, is_absolute: false } = &variable.kind else {
            return Err(self.error(variable.place, "the variable of a macro is a name"));
        };
        self.variables.push((name.clone(), element.clone()));
        let checked = self.parts(of, parts);
        self.variables.pop();
        let (nodes, last) = checked?;
        let result = match of {
            Macro::All | Macro::Exists | Macro::ExistsOne => Type::Bool,
            Macro::Filter => Type::list(element),
            Macro::Map => Type::list(last),
        };
        Ok((Node::Macro(of, Box::new(range_node), nodes), result))
    }

    /// Checks the parts for each element: conditions, but for the last one of `map`.
    fn parts(&mut self, of: Macro, parts: &[Expr]) -> Result<(Vec<Node>, Type), CompileError> {
        let (mut nodes, mut last) = (Vec::new(), Type::Bool);
        for (at, part) in parts.iter().enumerate() {
            if of == Macro::Map && at + 1 == parts.len() {
                let (node, of) = self.check(part)?;
                nodes.push(node);
                last = of;
            } else {
                nodes.push(self.boolean(part)?);
            }
        }
        Ok((nodes, last))
    }

    fn message(&mut self, name: &str, is_absolute: bool, fields: &[NewField], place: Place) -> Checked {
        let in_package = (!is_absolute).then(|| format!("{}.{name}", self.package));
        let found =
            in_package.iter().map(String::as_str).chain([name]).find_map(|name| self.schema.find(name));
        let at = found.ok_or_else(|| self.error(place, format!("there is no message {name}")))?;
        let form = self.schema.form(at);
        let of = self.schema.scalar_type(form);
        let of = of.ok_or_else(|| self.error(place, format!("{name} cannot be made in expressions")))?;
        let mut nodes: Vec<(Field, Node)> = Vec::new();
        for NewField { place, name, value } in fields {
            let (field, field_type) = self.field(at, name, *place)?;
            let (node, value_type) = self.check(value)?;
            if !value_type.fits(&field_type) {
                let problem = format!("the field {name} is {field_type}, not {value_type}");
                return Err(self.error(value.place, problem));
            }
            if nodes.iter().any(|(known, _)| known.number == field.number) {
                return Err(self.error(*place, format!("the field {name} is there twice")));
            }
            nodes.push((field, node));
        }
        nodes.sort_by_key(|(field, _)| field.number);
        Ok((Node::Message(form, nodes), of))
    }

    fn map(&mut self, entries: &[(Expr, Expr)]) -> Checked {
        let (mut nodes, mut keys, mut values) = (Vec::new(), None, None);
        for (key, value) in entries {
            let (key_node, key_type) = self.check(key)?;
            if ![Type::Bool, Type::Int, Type::Uint, Type::String, Type::Dyn].contains(&key_type) {
                return Err(self.error(key.place, format!("{key_type} is no key of a map")));
            }
            let (value_node, value_type) = self.check(value)?;
            nodes.push((key_node, value_node));
            keys = Some(keys.map_or(key_type.clone(), |known: Type| known.join(key_type)));
            values = Some(values.map_or(value_type.clone(), |known: Type| known.join(value_type)));
        }
        let [key, value] = [keys, values].map(|of| Box::new(of.unwrap_or(Type::Dyn)));
        Ok((Node::Map(nodes), Type::Map(key, value)))
    }
}

/// Returns the macro with a name and so many arguments, the range among them.
fn macro_of(name: &str, count: usize) -> Option<Macro> {
    Some(match (name, count) {
        ("all", 3) => Macro::All,
        ("exists", 3) => Macro::Exists,
        ("exists_one", 3) => Macro::ExistsOne,
        ("map", 3 | 4) => Macro::Map,
        ("filter", 3) => Macro::Filter,
        _ => return None,
    })
}
