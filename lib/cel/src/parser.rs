//! Tokens to a tree, by recursive descent.

use crate::ast::{Expr, Kind, NewField};
use crate::error::{CompileError, Place};
use crate::lexer::{Token, tokens};
use crate::value::Value;

/// The maximum length of an expression in bytes.
pub(crate) const MAX_LENGTH: usize = 8192;
/// The maximum depth of an expression: each level costs a stack frame of parser, checker and evaluator.
pub(crate) const MAX_DEPTH: usize = 64;

/// Binary operators, those that bind least first.
const LEVELS: [&[&str]; 5] =
    [&["||"], &["&&"], &["<", "<=", ">", ">=", "==", "!=", "in"], &["+", "-"], &["*", "/", "%"]];

/// Words that are names of fields and methods only.
const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Words that are no names at all.
const KEYWORDS: [&str; 4] = ["true", "false", "null", "in"];

/// Parses an expression.
pub(crate) fn parse(text: &str) -> Result<Expr, CompileError> {
    if text.len() > MAX_LENGTH {
        return Err(CompileError::new(
            text,
            Place(0),
            format!("an expression has at most {MAX_LENGTH} bytes"),
        ));
    }
    let mut parser = Parser { text, tokens: tokens(text)?, at: 0, depth: 0 };
    let expression = parser.expression()?;
    match parser.peek() {
        Token::End => Ok(expression),
        _ => Err(parser.unexpected()),
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(Token, Place)>,
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn place(&self) -> Place {
        self.tokens[self.at].1
    }

    fn next(&mut self) -> Token {
        let token = self.tokens[self.at].0.clone();
        // The last token stays.
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    fn error(&self, place: Place, problem: impl Into<String>) -> CompileError {
        CompileError::new(self.text, place, problem)
    }

    fn unexpected(&self) -> CompileError {
        let problem = match self.peek() {
            Token::End => "the expression ends too early".to_owned(),
            Token::Symbol(symbol) => format!("unexpected {symbol}"),
            Token::Word(word) => format!("unexpected {word}"),
            _ => "unexpected literal".to_owned(),
        };
        self.error(self.place(), problem)
    }

    /// Takes a symbol or the word `in` if it is next.
    fn take(&mut self, symbols: &[&'static str]) -> Option<&'static str> {
        let found = symbols.iter().find(|symbol| match self.peek() {
            Token::Symbol(next) => next == *symbol,
            Token::Word(word) => word == "in" && **symbol == "in",
            _ => false,
        })?;
        self.next();
        Some(found)
    }

    fn expect(&mut self, symbol: &'static str) -> Result<(), CompileError> {
        self.take(&[symbol]).map(|_| ()).ok_or_else(|| self.unexpected())
    }

    /// Returns an expression within the limit of depth.
    fn made(&self, place: Place, kind: Kind) -> Result<Expr, CompileError> {
        let made = Expr::new(place, kind);
        if made.depth > MAX_DEPTH {
            return Err(self.error(place, format!("an expression is nested at most {MAX_DEPTH} times")));
        }
        Ok(made)
    }

    fn expression(&mut self) -> Result<Expr, CompileError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(
                self.error(self.place(), format!("an expression is nested at most {MAX_DEPTH} times"))
            );
        }
        let condition = self.binary(0)?;
        let place = self.place();
        let expression = if self.take(&["?"]).is_some() {
            let then = self.binary(0)?;
            self.expect(":")?;
            let other = self.expression()?;
            self.made(place, Kind::Conditional(Box::new([condition, then, other])))?
        } else {
            condition
        };
        self.depth -= 1;
        Ok(expression)
    }

    fn binary(&mut self, level: usize) -> Result<Expr, CompileError> {
        let Some(symbols) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        loop {
            let place = self.place();
            let Some(symbol) = self.take(symbols) else { return Ok(left) };
            let operands = vec![left, self.binary(level + 1)?];
            left = self.made(place, Kind::Operator { symbol, operands })?;
        }
    }

    fn unary(&mut self) -> Result<Expr, CompileError> {
        let place = self.place();
        let Some(symbol) = self.take(&["!", "-"]) else { return self.member() };
        let (mut places, mut count) = (vec![place], 1_usize);
        loop {
            let place = self.place();
            if self.take(&[symbol]).is_none() {
                break;
            }
            places.push(place);
            count += 1;
        }
        // The smallest integer has no positive counterpart.
        if symbol == "-"
            && let Token::Int(digits) = *self.peek()
            && let Some(value) = 0_i64.checked_sub_unsigned(digits)
        {
            self.tokens[self.at].0 = Token::Symbol("-");
            self.next();
            count -= 1;
            let literal = self.made(place, Kind::Literal(Value::Int(value)))?;
            let mut operand = self.suffixes(literal)?;
            for place in places.into_iter().take(count).rev() {
                operand = self.made(place, Kind::Operator { symbol: "-x", operands: vec![operand] })?;
            }
            return Ok(operand);
        }
        let mut operand = self.member()?;
        let symbol = if symbol == "-" { "-x" } else { "!" };
        for place in places.into_iter().rev() {
            operand = self.made(place, Kind::Operator { symbol, operands: vec![operand] })?;
        }
        Ok(operand)
    }

    fn member(&mut self) -> Result<Expr, CompileError> {
        let primary = self.primary()?;
        self.suffixes(primary)
    }

    fn suffixes(&mut self, mut operand: Expr) -> Result<Expr, CompileError> {
        loop {
            let place = self.place();
            match self.take(&[".", "[", "{"]) {
                Some(".") => {
                    let place = self.place();
                    let field = match self.next() {
                        Token::Word(word) if !KEYWORDS.contains(&word.as_str()) => word,
                        _ => return Err(self.error(place, "a name is missing behind the dot")),
                    };
                    let kind = if self.take(&["("]).is_some() {
                        let mut arguments = vec![operand];
                        arguments.extend(self.list(")")?);
                        Kind::Call { function: field, is_method: true, arguments }
                    } else {
                        Kind::Select { operand: Box::new(operand), field }
                    };
                    operand = self.made(place, kind)?;
                }
                Some("[") => {
                    let index = self.expression()?;
                    self.expect("]")?;
                    operand =
                        self.made(place, Kind::Operator { symbol: "[]", operands: vec![operand, index] })?;
                }
                Some(_) => {
                    let name = operand.dotted();
                    let (name, is_absolute) =
                        name.ok_or_else(|| self.error(place, "a message is made by its name: Flow{...}"))?;
                    let fields = self.fields()?;
                    operand = self.made(operand.place, Kind::Message { name, is_absolute, fields })?;
                }
                None => return Ok(operand),
            }
        }
    }

    /// Parses expressions up to a bracket; a comma may be last.
    fn list(&mut self, end: &'static str) -> Result<Vec<Expr>, CompileError> {
        let mut list = Vec::new();
        while self.take(&[end]).is_none() {
            list.push(self.expression()?);
            if self.take(&[","]).is_none() {
                self.expect(end)?;
                break;
            }
        }
        Ok(list)
    }

    fn primary(&mut self) -> Result<Expr, CompileError> {
        let place = self.place();
        if !matches!(self.peek(), Token::Word(_) | Token::Symbol("(" | "[" | "{" | "."))
            && matches!(self.peek(), Token::Symbol(_) | Token::End)
        {
            return Err(self.unexpected());
        }
        let literal = |value| Kind::Literal(value);
        let kind = match self.next() {
            Token::Int(digits) => match i64::try_from(digits) {
                Ok(value) => literal(Value::Int(value)),
                Err(_) => return Err(self.error(place, "a number is too large")),
            },
            Token::Uint(value) => literal(Value::Uint(value)),
            Token::Double(value) => literal(Value::Double(value)),
            Token::String(text) => literal(Value::String(text.into())),
            Token::Bytes(bytes) => literal(Value::Bytes(bytes.into())),
            Token::Word(word) => match word.as_str() {
                "true" => literal(Value::Bool(true)),
                "false" => literal(Value::Bool(false)),
                "null" => literal(Value::Null),
                "in" => return Err(self.error(place, "unexpected in")),
                _ => return self.name(place, word, false),
            },
            Token::Symbol(".") => match self.next() {
                Token::Word(word) if !KEYWORDS.contains(&word.as_str()) => {
                    return self.name(place, word, true);
                }
                _ => return Err(self.error(place, "a name is missing behind the dot")),
            },
            Token::Symbol("(") => {
                let inner = self.expression()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Symbol("[") => Kind::List(self.list("]")?),
            Token::Symbol("{") => Kind::Map(self.entries()?),
            Token::Symbol(_) | Token::End => return Err(self.error(place, "unexpected symbol")),
        };
        self.made(place, kind)
    }

    fn name(&mut self, place: Place, name: String, is_absolute: bool) -> Result<Expr, CompileError> {
        if RESERVED.contains(&name.as_str()) {
            return Err(self.error(place, format!("{name} is a reserved word")));
        }
        let kind = if self.take(&["("]).is_some() {
            Kind::Call { function: name, is_method: false, arguments: self.list(")")? }
        } else {
            Kind::Name { name, is_absolute }
        };
        self.made(place, kind)
    }

    /// Parses the fields of a new message up to the bracket; a comma may be last.
    fn fields(&mut self) -> Result<Vec<NewField>, CompileError> {
        let mut fields = Vec::new();
        while self.take(&["}"]).is_none() {
            let place = self.place();
            let name = match self.next() {
                Token::Word(word) if !KEYWORDS.contains(&word.as_str()) => word,
                _ => return Err(self.error(place, "the name of a field is missing")),
            };
            self.expect(":")?;
            fields.push(NewField { place, name, value: self.expression()? });
            if self.take(&[","]).is_none() {
                self.expect("}")?;
                break;
            }
        }
        Ok(fields)
    }

    fn entries(&mut self) -> Result<Vec<(Expr, Expr)>, CompileError> {
        let mut entries = Vec::new();
        while self.take(&["}"]).is_none() {
            let key = self.expression()?;
            self.expect(":")?;
            entries.push((key, self.expression()?));
            if self.take(&[","]).is_none() {
                self.expect("}")?;
                break;
            }
        }
        Ok(entries)
    }
}
