//! Expressions of CEL (Common Expression Language) that are true or false of a message of Protocol Buffers.
//!
//! **Owns** nothing. **Needs** the descriptors of the messages. **Provides** [`Schema`], [`Program`].
//!
//! All of the language's operators, literals and macros (`has`, `all`, `exists`, `exists_one`, `map`, `filter`), its functions
//! on texts, sizes, types and conversions, fields of messages by their names in the schema, new messages (`Endpoint{ID: 7u}`), and
//! enums by the names of their values. Types are checked before the first evaluation, and errors have a place.
//!
//! **Bounds.** An expression has at most 8 kB and 64 levels, a pattern of `matches` 64 kB of program; an evaluation ends with
//! [`EvalError::TooExpensive`] after its limit of steps: one for each part of the expression and each element, and one for
//! 16 bytes of texts. A message stays encoded: each access reads the fields of one message in their order.
//!
//! **Differences from the language's definition**: named zones of times (`getHours('Europe/Berlin')`) are literals, those of the machine, and
//! read once; a zone that is computed is an offset from UTC (`'+02:00'`). The pattern of `matches` is a literal. Integers are equal to unsigned
//! ones of the same value.
//!
//! ```
//! let schema = cel::Schema::from_descriptors(hubble_api::DESCRIPTORS).unwrap();
//! let program = cel::Program::compile("_flow.verdict == Verdict.DROPPED", &schema, "_flow", "flow.Flow").unwrap();
//! let dropped = [0x10, 2];
//! assert_eq!(program.matches(&schema, &dropped, 1000), Ok(true));
//! let error = cel::Program::compile("_flow.verdict == 'x'", &schema, "_flow", "flow.Flow").unwrap_err();
//! assert_eq!(error.to_string(), "1:15: the operator == does not take int and string");
//! ```

#![forbid(unsafe_code)]

mod ast;
mod check;
mod encode;
mod error;
mod eval;
mod function;
mod lexer;
mod message;
mod parser;
mod schema;
mod types;
mod value;
mod zone;

pub use error::{CompileError, EvalError};
pub use schema::Schema;

use check::{Checker, Node};
use error::Place;
use eval::Evaluation;
use message::Message;
use types::Type;
use value::Value;

/// A checked expression about a message.
#[derive(Debug)]
pub struct Program {
    node: Node,
    message: usize,
}

impl Program {
    /// Compiles an expression with a variable that is a message; names are searched in its package first.
    ///
    /// # Errors
    /// The expression is malformed, names what is not there, has parts of the wrong types, or is no condition.
    pub fn compile(text: &str, schema: &Schema, variable: &str, message: &str) -> Result<Self, CompileError> {
        let error = |problem: String| CompileError::new(text, Place(0), problem);
        let at = schema.find(message).ok_or_else(|| error(format!("there is no message {message}")))?;
        let expression = parser::parse(text)?;
        let mut checker = Checker {
            text,
            schema,
            package: message.rsplit_once('.').map_or("", |(package, _)| package),
            variables: vec![(variable.to_owned(), Type::Message(at, message.to_owned()))],
        };
        let (node, of) = checker.check(&expression)?;
        match of {
            Type::Bool => Ok(Self { node, message: at }),
            of => Err(CompileError::new(text, expression.place, format!("the result is {of}, not bool"))),
        }
    }

    /// Evaluates the expression about an encoded message, of the schema that it was compiled with.
    ///
    /// # Errors
    /// There is no result within the limit of steps.
    pub fn matches(&self, schema: &Schema, message: &[u8], steps: usize) -> Result<bool, EvalError> {
        let message = Value::Message(Message::new(schema, self.message, message));
        Evaluation { schema, variables: vec![message], steps }.boolean(&self.node)
    }
}
