//! Functions and operators: the types that they take and return, and their values.

use crate::types::Type;

/// A function or an operator with an evaluation of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Not,
    Negate,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    Index,
    Size,
    Contains,
    StartsWith,
    EndsWith,
    ToInt,
    ToUint,
    ToDouble,
    ToString,
    ToBytes,
    ToDuration,
    ToTimestamp,
    /// A conversion that only the checker sees.
    ToDyn,
    TypeOf,
    /// A part of a time or of a duration.
    Part(Part),
}

/// A part of a date and time, or of a duration. Days of the month and of the year, and months, begin at 0, but for `Date`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    FullYear,
    Month,
    DayOfYear,
    DayOfMonth,
    Date,
    DayOfWeek,
    Hours,
    Minutes,
    Seconds,
    Milliseconds,
}

impl Part {
    fn named(name: &str) -> Option<Part> {
        Some(match name {
            "getFullYear" => Part::FullYear,
            "getMonth" => Part::Month,
            "getDayOfYear" => Part::DayOfYear,
            "getDayOfMonth" => Part::DayOfMonth,
            "getDate" => Part::Date,
            "getDayOfWeek" => Part::DayOfWeek,
            "getHours" => Part::Hours,
            "getMinutes" => Part::Minutes,
            "getSeconds" => Part::Seconds,
            "getMilliseconds" => Part::Milliseconds,
            _ => return None,
        })
    }

    fn is_of_durations(self) -> bool {
        matches!(self, Part::Hours | Part::Minutes | Part::Seconds | Part::Milliseconds)
    }
}

/// Returns the operator with a symbol.
pub(crate) fn operator(symbol: &str) -> Option<Function> {
    Some(match symbol {
        "!" => Function::Not,
        "-x" => Function::Negate,
        "+" => Function::Add,
        "-" => Function::Subtract,
        "*" => Function::Multiply,
        "/" => Function::Divide,
        "%" => Function::Remainder,
        "==" => Function::Equal,
        "!=" => Function::NotEqual,
        "<" => Function::Less,
        "<=" => Function::LessEqual,
        ">" => Function::Greater,
        ">=" => Function::GreaterEqual,
        "in" => Function::In,
        "[]" => Function::Index,
        _ => return None,
    })
}

/// Returns the function with a name, as a method or not.
pub(crate) fn function(name: &str, is_method: bool) -> Option<Function> {
    Some(match (name, is_method) {
        ("size", _) => Function::Size,
        ("contains", true) => Function::Contains,
        ("startsWith", true) => Function::StartsWith,
        ("endsWith", true) => Function::EndsWith,
        ("int", false) => Function::ToInt,
        ("uint", false) => Function::ToUint,
        ("double", false) => Function::ToDouble,
        ("string", false) => Function::ToString,
        ("bytes", false) => Function::ToBytes,
        ("duration", false) => Function::ToDuration,
        ("timestamp", false) => Function::ToTimestamp,
        ("dyn", false) => Function::ToDyn,
        ("type", false) => Function::TypeOf,
        (name, true) => Function::Part(Part::named(name)?),
        _ => return None,
    })
}

/// Returns the type of the result; `None` if there is no overload for the types.
pub(crate) fn result(function: Function, types: &[Type]) -> Option<Type> {
    use Type::{Bool, Bytes, Double, Duration, Dyn, Int, String, Timestamp, Uint};
    let is = |at: usize, of: &[Type]| of.iter().find(|of| types[at].fits(of)).cloned();
    let is_dyn = |at: usize| types[at] == Dyn;
    let (unary, binary) = (types.len() == 1, types.len() == 2);
    // The second operand has the type of the first, of which the result is one of a list.
    let same = |of: &[Type]| match (is_dyn(0), is_dyn(1)) {
        (true, true) => Some(Dyn),
        (true, false) => is(1, of),
        (false, _) => is(0, of).filter(|found| types[1].fits(found)),
    };
    match function {
        Function::Not if unary => is(0, &[Bool]),
        Function::Negate if unary && is_dyn(0) => Some(Dyn),
        Function::Negate if unary => is(0, &[Int, Double]),
        Function::Add if binary => {
            let pairs = [(Timestamp, Duration, Timestamp), (Duration, Timestamp, Timestamp)];
            let found = pairs.into_iter().find(|(one, other, _)| types[0] == *one && types[1] == *other);
            match (&types[0], &types[1]) {
                _ if found.is_some() => found.map(|(.., result)| result),
                (Type::List(a), Type::List(b)) => Some(Type::list((**a).clone().join((**b).clone()))),
                (Type::List(_), Dyn) | (Dyn, Type::List(_)) => Some(Type::list(Dyn)),
                _ => same(&[Int, Uint, Double, String, Bytes, Duration]),
            }
        }
        Function::Subtract if binary => match (&types[0], &types[1]) {
            (Timestamp, Duration) => Some(Timestamp),
            (Timestamp, Timestamp) => Some(Duration),
            (Timestamp, Dyn) => Some(Dyn),
            _ => same(&[Int, Uint, Double, Duration]),
        },
        Function::Multiply | Function::Divide if binary => same(&[Int, Uint, Double]),
        Function::Remainder if binary => same(&[Int, Uint]),
        Function::Equal | Function::NotEqual if binary => {
            let are_numbers = [0, 1].iter().all(|at| is(*at, &[Int, Uint, Double]).is_some());
            (are_numbers || types[0].fits(&types[1])).then_some(Bool)
        }
        Function::Less | Function::LessEqual | Function::Greater | Function::GreaterEqual if binary => {
            let are_numbers = [0, 1].iter().all(|at| is(*at, &[Int, Uint, Double]).is_some());
            (are_numbers || same(&[Bool, String, Bytes, Timestamp, Duration]).is_some()).then_some(Bool)
        }
        Function::In if binary => match &types[1] {
            Type::List(element) | Type::Map(element, _) => types[0].fits(element).then_some(Bool),
            Dyn => Some(Bool),
            _ => None,
        },
        Function::Index if binary => match &types[0] {
            Type::List(element) => is(1, &[Int, Uint, Double]).map(|_| (**element).clone()),
            Type::Map(key, value) => types[1].fits(key).then(|| (**value).clone()),
            Dyn => Some(Dyn),
            _ => None,
        },
        Function::Size if unary => match &types[0] {
            Type::List(_) | Type::Map(..) => Some(Int),
            _ => is(0, &[String, Bytes]).map(|_| Int),
        },
        Function::Contains | Function::StartsWith | Function::EndsWith if binary => {
            (types[0].fits(&String) && types[1].fits(&String)).then_some(Bool)
        }
        Function::ToInt if unary => is(0, &[Int, Uint, Double, String, Timestamp]).map(|_| Int),
        Function::ToUint if unary => is(0, &[Int, Uint, Double, String]).map(|_| Uint),
        Function::ToDouble if unary => is(0, &[Int, Uint, Double, String]).map(|_| Double),
        Function::ToString if unary => {
            is(0, &[Bool, Int, Uint, Double, String, Bytes, Timestamp, Duration]).map(|_| String)
        }
        Function::ToBytes if unary => is(0, &[String, Bytes]).map(|_| Bytes),
        Function::ToDuration if unary => is(0, &[String, Duration]).map(|_| Duration),
        Function::ToTimestamp if unary => is(0, &[Int, String, Timestamp]).map(|_| Timestamp),
        Function::ToDyn if unary => Some(Dyn),
        Function::TypeOf if unary => Some(Type::Meta),
        Function::Part(part) if unary && part.is_of_durations() => is(0, &[Timestamp, Duration]).map(|_| Int),
        Function::Part(_) if unary => is(0, &[Timestamp]).map(|_| Int),
        Function::Part(_) if binary => (types[0].fits(&Timestamp) && types[1].fits(&String)).then_some(Int),
        _ => None,
    }
}
