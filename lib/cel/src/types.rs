//! Types of expressions, as the checker knows them.

use std::fmt;

/// A type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    /// Any type, which only the evaluation knows.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    /// The type of types.
    Meta,
    /// A wrapper of a primitive type: that, or null.
    Nullable(Box<Type>),
    List(Box<Type>),
    Map(Box<Type>, Box<Type>),
    /// A message, by its place in the schema and its name.
    Message(usize, String),
}

impl Type {
    pub(crate) fn list(element: Type) -> Self {
        Self::List(Box::new(element))
    }

    /// Whether a value of this type may be one of the other type.
    pub(crate) fn fits(&self, other: &Type) -> bool {
        match (self, other) {
            (Self::Dyn, _) | (_, Self::Dyn) => true,
            (Self::Nullable(inner), Self::Null) | (Self::Null, Self::Nullable(inner)) => {
                **inner != Self::Null
            }
            (Self::Nullable(inner), other) => inner.fits(other),
            (one, Self::Nullable(inner)) => one.fits(inner),
            (Self::Null, Self::Message(..) | Self::Timestamp | Self::Duration)
            | (Self::Message(..) | Self::Timestamp | Self::Duration, Self::Null) => true,
            (Self::List(a), Self::List(b)) => a.fits(b),
            (Self::Map(key, value), Self::Map(other_key, other)) => key.fits(other_key) && value.fits(other),
            (one, other) => one == other,
        }
    }

    /// Returns the type of either of two values.
    pub(crate) fn join(self, other: Type) -> Type {
        if self == other { self } else { Self::Dyn }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dyn => f.write_str("dyn"),
            Self::Null => f.write_str("null_type"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::String => f.write_str("string"),
            Self::Bytes => f.write_str("bytes"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::Duration => f.write_str("duration"),
            Self::Meta => f.write_str("type"),
            Self::Nullable(inner) => write!(f, "wrapper({inner})"),
            Self::List(element) => write!(f, "list({element})"),
            Self::Map(key, value) => write!(f, "map({key}, {value})"),
            Self::Message(_, name) => f.write_str(name),
        }
    }
}
