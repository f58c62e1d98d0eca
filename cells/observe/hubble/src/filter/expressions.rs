//! Expressions of CEL on flows; the variable is `_flow`.

use cel::{Program, Schema};
use hubble_api::flow::{Flow, FlowFilter};
use prost::Message as _;

use super::BadFilter;

/// The name of the flow in expressions.
const VARIABLE: &str = "_flow";
/// The limit of work for a flow: some ten microseconds.
const STEPS: usize = 2000;
/// The maximum number of expressions of a filter.
const MAX_EXPRESSIONS: usize = 16;

/// Expressions of which one has to be true.
pub(super) struct Expressions {
    schema: Schema,
    programs: Vec<Program>,
}

/// Compiles the expressions of a filter; `None` without any.
pub(super) fn compile(filter: &FlowFilter) -> Result<Option<Expressions>, BadFilter> {
    let bad = |problem: String| BadFilter { field: "cel_expression", problem };
    let texts = filter.experimental.as_ref().map_or(&[][..], |all| &all.cel_expression);
    if texts.is_empty() {
        return Ok(None);
    }
    if texts.len() > MAX_EXPRESSIONS {
        return Err(bad(format!("at most {MAX_EXPRESSIONS} expressions")));
    }
    let schema = Schema::from_descriptors(hubble_api::DESCRIPTORS).map_err(|error| bad(error.to_string()))?;
    let compiled = texts.iter().map(|text| {
        Program::compile(text, &schema, VARIABLE, "flow.Flow").map_err(|error| bad(format!("{text}:{error}")))
    });
    let programs = compiled.collect::<Result<_, _>>()?;
    Ok(Some(Expressions { schema, programs }))
}

impl Expressions {
    /// Whether an expression is true of a flow: one without a result is not, as in Cilium.
    pub(super) fn select(&self, flow: &Flow) -> bool {
        let encoded = flow.encode_to_vec();
        self.programs.iter().any(|program| program.matches(&self.schema, &encoded, STEPS) == Ok(true))
    }
}
