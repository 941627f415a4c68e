//! Operands, and calls of functions.

use crate::{
    ast::{Command, Operand, Span, Term},
    error::{Fault, Outcome},
    function::{Body, Function},
    value::Value,
};

use super::State;

impl State<'_, '_> {
    /// Evaluates a command onto the stack. The value of the command before it in the pipeline, if there is one, is at
    /// `start`.
    pub(super) fn command(&mut self, dot: &Value, command: &Command, start: usize) -> Outcome<()> {
        self.context.step()?;
        let Some((first, operands)) = command.operands.items(&self.templates.tree.operands).split_first()
        else {
            return Ok(());
        };
        let has_arguments = !operands.is_empty() || self.stack.len() > start;
        match &first.term {
            Term::Function(function) if first.fields.is_empty() => self.call(dot, function, operands, start),
            Term::Nil => Err(Fault::new("nil is not a command")),
            Term::Denied(name) => Err(denied(name).at(first.span)),
            Term::Dot
            | Term::Bool(_)
            | Term::Number(_)
            | Term::Str(_)
            | Term::Variable(_)
            | Term::Function(_)
            | Term::Paren(_) => {
                if has_arguments {
                    self.method(dot, first, operands, start)
                } else {
                    self.operand(dot, first)
                }
            }
        }
    }

    /// Evaluates a chain of fields with arguments, which its last name must accept.
    #[inline(never)]
    fn method(&mut self, dot: &Value, first: &Operand, operands: &[Operand], start: usize) -> Outcome<()> {
        let Some((method, fields)) = first.fields.split_last() else {
            return Err(Fault::new("can't give argument to non-function").at(first.span));
        };
        self.term(dot, first)?;
        let receiver = self.pop();
        let receiver = self.fields(receiver, fields).map_err(|fault| fault.at(first.span))?;
        self.arguments(dot, operands, start)?;
        let found = receiver.field(self.context, method, &self.stack[start..]);
        self.stack.truncate(start);
        self.stack.push(found.map_err(|fault| fault.at(first.span))?.value);
        Ok(())
    }

    /// Evaluates an operand without arguments onto the stack.
    fn operand(&mut self, dot: &Value, operand: &Operand) -> Outcome<()> {
        self.term(dot, operand)?;
        if !operand.fields.is_empty() {
            let value = self.pop();
            let found = self.fields(value, &operand.fields).map_err(|fault| fault.at(operand.span))?;
            self.stack.push(found.value);
        }
        Ok(())
    }

    #[inline(always)]
    fn term(&mut self, dot: &Value, operand: &Operand) -> Outcome<()> {
        let value = match &operand.term {
            Term::Dot => dot.clone(),
            Term::Nil => Value::Nil,
            Term::Bool(value) => Value::Bool(*value),
            Term::Number(number) if number.is_float => Value::Float(number.float),
            Term::Number(number) => number
                .int
                .map(Value::Int)
                .ok_or_else(|| Fault::new("the number overflows int").at(operand.span))?,
            Term::Str(text) => Value::Str(text.clone()),
            Term::Variable(variable) => {
                let found = self.variables.get(*variable).cloned();
                found.ok_or_else(|| Fault::new("undefined variable").at(operand.span))?
            }
            Term::Function(function) => return self.call_alone(dot, function, operand.span),
            Term::Denied(name) => return Err(denied(name).at(operand.span)),
            Term::Paren(pipe) => return self.nested(|state| state.pipe(dot, pipe)),
        };
        self.stack.push(value);
        Ok(())
    }

    /// Evaluates the arguments of a call onto the stack from `start`, where the last one is if it was piped. Each call
    /// costs an eighth of the length of its strings, for functions that read them.
    #[inline(always)]
    fn arguments(&mut self, dot: &Value, operands: &[Operand], start: usize) -> Outcome<()> {
        if self.stack.len() > start && !operands.is_empty() {
            let piped = self.pop();
            self.operands(dot, operands)?;
            self.stack.push(piped);
        } else {
            self.operands(dot, operands)?;
        }
        let mut length = 0;
        for value in &self.stack[start..] {
            length += value.as_text().map_or(0, |text| text.len() / 8);
        }
        self.context.charge(length)
    }

    #[inline]
    fn operands(&mut self, dot: &Value, operands: &[Operand]) -> Outcome<()> {
        for operand in operands {
            self.context.step()?;
            self.operand(dot, operand)?;
        }
        Ok(())
    }

    /// Calls a function that is an operand.
    #[inline(never)]
    fn call_alone(&mut self, dot: &Value, function: &Function, span: Span) -> Outcome<()> {
        let start = self.stack.len();
        self.call(dot, function, &[], start).map_err(|fault| fault.at(span))
    }

    #[inline(always)]
    fn call(&mut self, dot: &Value, function: &Function, operands: &[Operand], start: usize) -> Outcome<()> {
        let count = operands.len() + self.stack.len() - start;
        if count < function.least || count > function.most {
            return Err(wrong_count(function, count));
        }
        match function.body {
            Body::And | Body::Or => return self.short_circuit(dot, function, operands, start),
            Body::Refused(why) => return Err(refused(function, why)),
            Body::Call(_) | Body::Execute => self.arguments(dot, operands, start)?,
        }
        let value = match function.body {
            Body::Call(call) => call(self.context, &self.stack[start..]),
            Body::And | Body::Or | Body::Refused(_) | Body::Execute => self.execute(start),
        };
        self.stack.truncate(start);
        self.stack.push(value.map_err(|fault| fault.of_call(function.name))?);
        Ok(())
    }

    /// Evaluates to the first value that decides, a true one for `or`, else the last one.
    fn short_circuit(
        &mut self,
        dot: &Value,
        function: &Function,
        operands: &[Operand],
        start: usize,
    ) -> Outcome<()> {
        let decisive = matches!(function.body, Body::Or);
        let piped = if self.stack.len() > start { self.stack.pop() } else { None };
        for operand in operands {
            self.stack.truncate(start);
            self.context.step()?;
            self.operand(dot, operand)?;
            if self.stack[start].is_true() == decisive {
                return Ok(());
            }
        }
        if let Some(last) = piped {
            self.stack.truncate(start);
            self.stack.push(last);
        }
        Ok(())
    }

    /// Renders another template of this text to a string. The arguments begin at `start`.
    fn execute(&mut self, start: usize) -> Outcome<Value> {
        let values = &self.stack[start..];
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

#[cold]
fn denied(name: &str) -> Fault {
    Fault::refused(format!("{name}: function is disabled by template.function_denylist"))
}

#[cold]
fn refused(function: &Function, why: &str) -> Fault {
    Fault::refused(format!("{} is not available: {why}", function.name))
}

#[cold]
fn wrong_count(function: &Function, count: usize) -> Fault {
    let Function { name, least, most, .. } = function;
    let wanted = if *most == usize::MAX {
        format!("at least {least}")
    } else if least == most {
        format!("{least}")
    } else {
        format!("{least} to {most}")
    };
    Fault::new(format!("wrong number of args for {name}: want {wanted} got {count}"))
}
