//! Body, headers and query parameters of operations, and their validation before a handler runs.

use http::HeaderMap;

use crate::error::BadRequest;
use crate::request::find;

/// The body that an operation takes, with its name in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    None,
    Optional(&'static str),
    Required(&'static str),
}

impl Body {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "body",
            Self::Optional(name) | Self::Required(name) => name,
        }
    }
}

/// A header or query parameter with rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Param {
    pub(crate) place: Place,
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) required: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Header,
    Query,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Query => "query",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Text,
    Bool,
    Integer,
    OneOf(&'static [&'static str]),
}

/// Validates one parameter. An empty value is treated as absent.
pub(crate) fn check(
    param: &Param,
    query: &[(String, String)],
    headers: &HeaderMap,
) -> Result<(), BadRequest> {
    let (name, place) = (param.name, param.place.name());
    let value = match param.place {
        Place::Query => find(query, name),
        Place::Header => headers.get(name).and_then(|value| value.to_str().ok()),
    };
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return if param.required { Err(BadRequest::Required { name, place }) } else { Ok(()) };
    };
    let wrong_type = |kind| BadRequest::WrongType { name, place, kind, value: value.to_owned() };
    match param.kind {
        Kind::Text => Ok(()),
        Kind::Bool => parse_bool(value).map(drop).ok_or_else(|| wrong_type("bool")),
        Kind::Integer => value.parse::<i64>().map(drop).map_err(|_| wrong_type("int64")),
        Kind::OneOf(permitted) if permitted.contains(&value) => Ok(()),
        Kind::OneOf(permitted) => Err(BadRequest::NotOneOf { name, place, permitted }),
    }
}

/// Parses a boolean in the spellings that Cilium's server accepts.
pub(crate) fn parse_bool(value: &str) -> Option<bool> {
    const ON: [&str; 9] = ["1", "t", "true", "on", "yes", "y", "ok", "enabled", "checked"];
    const OFF: [&str; 9] = ["0", "f", "false", "off", "no", "n", "disabled", "unchecked", "not ok"];
    let value = value.to_ascii_lowercase();
    if ON.contains(&value.as_str()) {
        Some(true)
    } else if OFF.contains(&value.as_str()) {
        Some(false)
    } else {
        None
    }
}
