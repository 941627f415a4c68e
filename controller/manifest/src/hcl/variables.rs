//! Variables: the declarations of a text, and values from outside.
//!
//! In: `variable` and `variables` blocks, and [`Variables`] from, in this order, `NOMAD_VAR_<name>`, files of
//! values and `--var`; the last value for a variable wins. Out: `var` in the scope, with every value
//! converted to its declared type and validated.

use std::collections::{BTreeMap, BTreeSet};

use hcl_edit::Span;
use hcl_edit::expr::Expression;
use hcl_edit::structure::{Attribute, Block, Body, Structure};
use herdlet_api_types::api::VariableTexts;

use super::eval::Eval;
use super::scope::{Fault, Scope};
use super::source::Source;
use super::value::Value;
use super::variable_type::VariableType;
use crate::yaml::{Position, Problem, Problems, nearest};

/// Values for variables that come from outside the texts that declare them.
#[derive(Debug, Clone, Default)]
pub struct Variables(BTreeMap<String, AssignedValue>);

#[derive(Debug, Clone)]
struct AssignedValue {
    value: GivenValue,
    /// Where it was written.
    source: String,
    position: Position,
    /// The environment may hold values for other job files.
    may_be_undeclared: bool,
}

#[derive(Debug, Clone)]
enum GivenValue {
    /// As on the command line. The variable's type decides whether it is literal text or an expression.
    Text(String),
    Value(Value),
}

impl Variables {
    /// Reads the values.
    ///
    /// # Errors
    /// Files that are not lists of values, and assignments without a name or `=`.
    pub fn read(texts: &VariableTexts) -> Result<Self, Problems> {
        let (mut variables, mut problems) = (Self::default(), Problems::new());
        for (name, text) in &texts.environment {
            let source = format!("NOMAD_VAR_{name}");
            variables.0.insert(name.clone(), AssignedValue::text(text, source, true));
        }
        for file in &texts.files {
            if let Err(problem) = variables.file(&file.name, file.text.as_bytes()) {
                problems.push(problem);
            }
        }
        for assignment in &texts.assignments {
            match assignment.split_once('=') {
                Some((name, text)) if !name.trim().is_empty() => {
                    let name = name.trim();
                    variables
                        .0
                        .insert(name.to_owned(), AssignedValue::text(text, format!("--var {name}"), false));
                }
                Some(_) | None => problems.push(Problem {
                    source: "--var".to_owned(),
                    line: 0,
                    column: 0,
                    path: String::new(),
                    message: format!("{assignment:?} is not an assignment; write NAME=VALUE"),
                }),
            }
        }
        problems.into_result().map(|()| variables)
    }

    /// Reads a file of values: attributes in HCL, or an object in JSON.
    fn file(&mut self, name: &str, bytes: &[u8]) -> Result<(), Problem> {
        let source = Source::read(name, bytes)?;
        let scope = Scope::literal(&source);
        let eval = Eval::new(&scope);
        let mut give = |variable: &str, value: Value, position: Position| {
            let source = name.to_owned();
            let given =
                AssignedValue { value: GivenValue::Value(value), source, position, may_be_undeclared: false };
            self.0.insert(variable.to_owned(), given);
        };
        if bytes.trim_ascii_start().starts_with(b"{") {
            // A JSON object is an HCL expression.
            let value = eval.value(&source.parse_expression()?).map_err(Fault::into_problem)?;
            let Value::Map(entries) = value else {
                return Err(source.problem(0, "must be an object of values"));
            };
            for (name, value) in entries {
                give(&name, value, Position { line: 1, column: 1 });
            }
            return Ok(());
        }
        for structure in &source.parse()?.body {
            match structure {
                Structure::Attribute(attribute) => {
                    let value = eval.value(&attribute.value).map_err(Fault::into_problem)?;
                    give(attribute.key.as_str(), value, source.position(&attribute.key));
                }
                Structure::Block(block) => {
                    let message = "a variable file may only contain NAME = VALUE";
                    return Err(source.problem_at(source.position(&block.ident), message));
                }
            }
        }
        Ok(())
    }

    /// Reports the values for variables that no text declares.
    pub fn undeclared(&self, declared: &BTreeSet<String>) -> Problems {
        let mut problems = Problems::new();
        for (name, given) in &self.0 {
            if given.may_be_undeclared || declared.contains(name) {
                continue;
            }
            let near = nearest(name, declared.iter().map(String::as_str));
            let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            problems.push(given.problem(format!("no job file declares a variable `{name}`{near}")));
        }
        problems
    }
}

impl AssignedValue {
    fn text(text: &str, source: String, may_be_undeclared: bool) -> Self {
        let value = GivenValue::Text(text.to_owned());
        Self { value, source, position: Position::default(), may_be_undeclared }
    }

    fn problem(&self, message: String) -> Problem {
        let Position { line, column } = self.position;
        Problem { source: self.source.clone(), line, column, path: String::new(), message }
    }

    /// Returns the value, converted to the type of the variable.
    fn value(&self, kind: &VariableType) -> Result<Value, Problem> {
        let value = match &self.value {
            GivenValue::Value(value) => value.clone(),
            GivenValue::Text(text) if kind.is_plain() => Value::Str(text.clone()),
            GivenValue::Text(text) => {
                let source = Source::new(&self.source, text);
                let scope = Scope::literal(&source);
                Eval::new(&scope).value(&source.parse_expression()?).map_err(Fault::into_problem)?
            }
        };
        kind.convert(value).map_err(|message| self.problem(message))
    }
}

/// Adds `var` to the scope and returns the declared names.
pub(super) fn declare(
    syntax: &Body,
    variables: &Variables,
    scope: &mut Scope<'_>,
    problems: &mut Problems,
) -> BTreeSet<String> {
    let mut declared = BTreeSet::new();
    for block in syntax.blocks() {
        let declarations: Vec<Result<Declaration<'_>, Problem>> = match block.ident.as_str() {
            "variable" => vec![Declaration::read(block, scope.source)],
            "variables" => {
                block.body.attributes().map(|attribute| Ok(Declaration::plain(attribute))).collect()
            }
            _ => continue,
        };
        for declaration in declarations {
            let result = declaration.and_then(|declaration| {
                if !declared.insert(declaration.name.to_owned()) {
                    let message = format!("the variable `{}` is declared twice", declaration.name);
                    return Err(scope.source.problem_at(declaration.position(scope), message));
                }
                declaration.put(variables, scope)
            });
            if let Err(problem) = result {
                problems.push(problem);
            }
        }
    }
    declared
}

/// A declared variable.
struct Declaration<'b> {
    name: &'b str,
    place: &'b dyn SpanOf,
    kind: VariableType,
    default: Option<&'b Expression>,
    validations: Vec<&'b Block>,
}

/// An object-safe [`Span`].
trait SpanOf {
    fn position(&self, source: &Source<'_>) -> Position;
}

impl<T: Span> SpanOf for T {
    fn position(&self, source: &Source<'_>) -> Position {
        source.position(self)
    }
}

impl<'b> Declaration<'b> {
    fn read(block: &'b Block, source: &Source<'_>) -> Result<Self, Problem> {
        let problem =
            |place: &dyn SpanOf, message: String| source.problem_at(place.position(source), message);
        let [label] = block.labels.as_slice() else {
            return Err(problem(&block.ident, "needs one name: `variable \"NAME\" { … }`".to_owned()));
        };
        let mut declaration = Self {
            name: label.as_str(),
            place: &block.ident,
            kind: VariableType::Any,
            default: None,
            validations: Vec::new(),
        };
        for structure in &block.body {
            match structure {
                Structure::Attribute(attribute) => match attribute.key.as_str() {
                    "type" => declaration.kind = VariableType::read(&attribute.value, source)?,
                    "default" => declaration.default = Some(&attribute.value),
                    "description" | "sensitive" | "nullable" => {}
                    other => return Err(problem(&attribute.key, format!("a variable has no `{other}`"))),
                },
                Structure::Block(inner) if inner.ident.as_str() == "validation" => {
                    declaration.validations.push(inner);
                }
                Structure::Block(inner) => {
                    return Err(problem(
                        &inner.ident,
                        format!("a variable has no block `{}`", inner.ident.as_str()),
                    ));
                }
            }
        }
        Ok(declaration)
    }

    /// Reads a line of a `variables` block.
    fn plain(attribute: &'b Attribute) -> Self {
        let (name, place) = (attribute.key.as_str(), &attribute.key);
        Self {
            name,
            place,
            kind: VariableType::Any,
            default: Some(&attribute.value),
            validations: Vec::new(),
        }
    }

    fn position(&self, scope: &Scope<'_>) -> Position {
        self.place.position(scope.source)
    }

    fn put(&self, variables: &Variables, scope: &mut Scope<'_>) -> Result<(), Problem> {
        let value = match (variables.0.get(self.name), self.default) {
            (Some(given), _) => given.value(&self.kind)?,
            (None, Some(default)) => {
                // A default may not contain references.
                let nothing = Scope::literal(scope.source);
                let value = Eval::new(&nothing).value(default).map_err(Fault::into_problem)?;
                let position = scope.source.position(default);
                self.kind.convert(value).map_err(|message| scope.source.problem_at(position, message))?
            }
            (None, None) => {
                let name = self.name;
                let message = format!(
                    "the variable `{name}` has no value; give it a default, --var {name}=VALUE, --var-file FILE or NOMAD_VAR_{name}"
                );
                return Err(scope.source.problem_at(self.position(scope), message));
            }
        };
        scope.variables.insert(self.name.to_owned(), value);
        self.validations.iter().try_for_each(|validation| self.validate(validation, scope))
    }

    fn validate(&self, validation: &Block, scope: &Scope<'_>) -> Result<(), Problem> {
        let eval = Eval::new(scope);
        let Some(condition) = validation.body.get_attribute("condition") else {
            let message = "a validation needs a `condition`";
            return Err(scope.source.problem_at(scope.source.position(&validation.ident), message));
        };
        if eval.boolean(&condition.value).map_err(Fault::into_problem)? {
            return Ok(());
        }
        let error_message = match validation.body.get_attribute("error_message") {
            Some(message) => eval.value(&message.value).map_err(Fault::into_problem)?.text(),
            None => None,
        };
        let error_message = error_message.unwrap_or_else(|| "its condition does not hold".to_owned());
        let message = format!("the value of the variable `{}` is not valid: {error_message}", self.name);
        Err(scope.source.problem_at(self.position(scope), message))
    }
}
