//! Operands, and calls of functions.

use crate::{
    ast::{Command, Operand, Term},
    error::{Fault, Outcome},
    function::{Body, Function},
    value::Value,
};

use super::State;

impl State<'_, '_> {
    /// Evaluates a command. `last` is the value of the command before it in the pipeline.
    pub(super) fn command(&mut self, dot: &Value, command: &Command, last: Option<Value>) -> Outcome<Value> {
        self.context.step()?;
        let first = &command.first;
        let arguments = Arguments { operands: &command.arguments, last };
        if let Some((method, fields)) = first.fields.split_last() {
            // Only the last name of a chain can be a method with arguments.
            let receiver = self.term(dot, first)?;
            let receiver = self.fields(receiver, fields).map_err(|fault| fault.at(first.span))?;
            let start = self.arguments(dot, arguments)?;
            let found = receiver.field(self.context, method, &self.stack[start..]);
            self.stack.truncate(start);
            return found.map(|found| found.value).map_err(|fault| fault.at(first.span));
        }
        if let Term::Function(function) = &first.term {
            return self.call(dot, function, arguments);
        }
        if matches!(first.term, Term::Nil) {
            return Err(Fault::new("nil is not a command"));
        }
        let is_denied = matches!(first.term, Term::Denied(_));
        if !is_denied && (!arguments.operands.is_empty() || arguments.last.is_some()) {
            return Err(Fault::new("can't give argument to non-function").at(first.span));
        }
        self.term(dot, first)
    }

    /// Evaluates an operand without arguments.
    fn operand(&mut self, dot: &Value, operand: &Operand) -> Outcome<Value> {
        self.context.step()?;
        let value = self.term(dot, operand)?;
        if operand.fields.is_empty() {
            return Ok(value);
        }
        self.fields(value, &operand.fields).map(|found| found.value).map_err(|fault| fault.at(operand.span))
    }

    fn term(&mut self, dot: &Value, operand: &Operand) -> Outcome<Value> {
        match &operand.term {
            Term::Dot => Ok(dot.clone()),
            Term::Nil => Ok(Value::Nil),
            Term::Bool(value) => Ok(Value::Bool(*value)),
            Term::Number(number) if number.is_float => Ok(Value::Float(number.float)),
            Term::Number(number) => number
                .int
                .map(Value::Int)
                .ok_or_else(|| Fault::new("the number overflows int").at(operand.span)),
            Term::Str(text) => Ok(Value::Str(text.clone())),
            Term::Variable(variable) => {
                let found = self.variables.get(*variable).cloned();
                found.ok_or_else(|| Fault::new("undefined variable").at(operand.span))
            }
            Term::Function(function) => self
                .call(dot, function, Arguments { operands: &[], last: None })
                .map_err(|fault| fault.at(operand.span)),
            Term::Denied(name) => Err(denied(name).at(operand.span)),
            Term::Paren(pipe) => self.nested(|state| state.pipe(dot, pipe)),
        }
    }

    /// Evaluates arguments onto the stack; returns where they begin. The caller removes them. Each call costs an eighth of
    /// the length of its strings, for functions that read them.
    fn arguments(&mut self, dot: &Value, arguments: Arguments<'_>) -> Outcome<usize> {
        let start = self.stack.len();
        let mut length = 0;
        for operand in arguments.operands {
            let value = self.operand(dot, operand)?;
            length += value.as_text().map_or(0, |text| text.len() / 8);
            self.stack.push(value);
        }
        if let Some(last) = arguments.last {
            length += last.as_text().map_or(0, |text| text.len() / 8);
            self.stack.push(last);
        }
        self.context.charge(length)?;
        Ok(start)
    }

    fn call(&mut self, dot: &Value, function: &Function, arguments: Arguments<'_>) -> Outcome<Value> {
        let count = arguments.operands.len() + usize::from(arguments.last.is_some());
        if count < function.least || count > function.most {
            return Err(Fault::new(wrong_count(function, count)));
        }
        match function.body {
            Body::Call(call) => {
                let start = self.arguments(dot, arguments)?;
                let value = call(self.context, &self.stack[start..]);
                self.stack.truncate(start);
                value.map_err(|fault| fault.of_call(function.name))
            }
            Body::And | Body::Or => self.short_circuit(dot, arguments, function),
            Body::Execute => {
                let start = self.arguments(dot, arguments)?;
                let values = self.stack.split_off(start);
                self.execute(&values).map_err(|fault| fault.of_call(function.name))
            }
            Body::Refused(why) => Err(Fault::refused(format!("{} is not available: {why}", function.name))),
        }
    }

    /// Returns the first value that decides, a true one for `or`, else the last one.
    fn short_circuit(
        &mut self,
        dot: &Value,
        arguments: Arguments<'_>,
        function: &Function,
    ) -> Outcome<Value> {
        let decisive = matches!(function.body, Body::Or);
        let mut value = Value::Nil;
        for operand in arguments.operands {
            value = self.operand(dot, operand)?;
            if value.is_true() == decisive {
                return Ok(value);
            }
        }
        Ok(arguments.last.unwrap_or(value))
    }

    /// Renders another template of this text to a string.
    fn execute(&mut self, values: &[Value]) -> Outcome<Value> {
        let name = values
            .first()
            .and_then(Value::as_text)
            .ok_or_else(|| Fault::new("expected the name of a template"))?;
        let name = name.lossy().into_owned();
        let dot = values.get(1).cloned().unwrap_or_default();
        let inner = self.out.nested();
        let out = std::mem::replace(&mut self.out, inner);
        let done = self.template(&name, dot);
        let rendered = std::mem::replace(&mut self.out, out);
        done?;
        self.context.text(rendered.bytes)
    }
}

/// The arguments of a call, not evaluated yet.
struct Arguments<'c> {
    operands: &'c [Operand],
    last: Option<Value>,
}

fn denied(name: &str) -> Fault {
    Fault::refused(format!("{name}: function is disabled by template.function_denylist"))
}

fn wrong_count(function: &Function, count: usize) -> String {
    let name = function.name;
    if function.most == usize::MAX {
        format!("wrong number of args for {name}: want at least {} got {count}", function.least)
    } else if function.least == function.most {
        format!("wrong number of args for {name}: want {} got {count}", function.least)
    } else {
        format!("wrong number of args for {name}: want {} to {} got {count}", function.least, function.most)
    }
}
