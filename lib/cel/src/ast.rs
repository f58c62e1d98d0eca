//! The tree of an expression.

use crate::error::Place;
use crate::value::Value;

/// An expression with its place.
#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub(crate) place: Place,
    /// The number of expressions on the longest way down.
    pub(crate) depth: usize,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Literal(Value<'static>),
    /// A name; with a leading dot it is not searched in the package.
    Name {
        name: String,
        is_absolute: bool,
    },
    Select {
        operand: Box<Expr>,
        field: String,
    },
    /// A function, or a method of its first argument.
    Call {
        function: String,
        is_method: bool,
        arguments: Vec<Expr>,
    },
    /// An operator by its symbol; `[]` for an index, `-x` for a negation.
    Operator {
        symbol: &'static str,
        operands: Vec<Expr>,
    },
    Conditional(Box<[Expr; 3]>),
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    /// A new message, by its name as of a variable.
    Message {
        name: String,
        is_absolute: bool,
        fields: Vec<NewField>,
    },
}

/// A field of a new message.
#[derive(Clone, Debug)]
pub(crate) struct NewField {
    pub(crate) place: Place,
    pub(crate) name: String,
    pub(crate) value: Expr,
}

impl Expr {
    pub(crate) fn new(place: Place, kind: Kind) -> Self {
        let children: Vec<&Expr> = match &kind {
            Kind::Literal(_) | Kind::Name { .. } => Vec::new(),
            Kind::Select { operand, .. } => vec![operand],
            Kind::Call { arguments: list, .. } | Kind::Operator { operands: list, .. } | Kind::List(list) => {
                list.iter().collect()
            }
            Kind::Conditional(list) => list.iter().collect(),
            Kind::Message { fields, .. } => fields.iter().map(|field| &field.value).collect(),
            Kind::Map(entries) => entries.iter().flat_map(|(key, value)| [key, value]).collect(),
        };
        let depth = 1 + children.iter().map(|child| child.depth).max().unwrap_or_default();
        Self { place, depth, kind }
    }

    /// Returns the name with dots that the expression is, and whether it begins with a dot; `None` if it is another one.
    pub(crate) fn dotted(&self) -> Option<(String, bool)> {
        match &self.kind {
            Kind::Name { name, is_absolute } => Some((name.clone(), *is_absolute)),
            Kind::Select { operand, field } => {
                operand.dotted().map(|(name, is_absolute)| (format!("{name}.{field}"), is_absolute))
            }
            _ => None,
        }
    }
}
