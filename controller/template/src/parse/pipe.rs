//! Pipelines: declarations, commands, operands.

use crate::{
    ast::{Command, Operand, Pipe, Span, Term, VariableId},
    error::{Fault, Outcome},
    functions,
    lex::{Keyword, Kind, Token, offset},
    number,
    text::Text,
};

use super::{Parser, Place, close, fault};

impl<'t> Parser<'t> {
    /// Parses a pipeline and its end: the right delimiter or the right parenthesis.
    pub(super) fn pipe(&mut self, place: Place) -> Outcome<Pipe> {
        let start = self.peek().start;
        let (variables, assigns) = self.declarations(place)?;
        let end = if place == Place::Paren { Kind::RightParen } else { Kind::RightDelimiter };
        let first = self.open.commands.len();
        loop {
            let token = self.next();
            let stage = self.open.commands.len() - first + 1;
            if token.kind == end {
                if stage == 1 {
                    return Err(fault(token, format!("missing value for {}", place.name())));
                }
                let span = trimmed(self.text, start, token.start.max(start));
                let commands = close(&mut self.open.commands, first, &mut self.templates.tree.commands);
                return Ok(Pipe { span, variables, assigns, commands });
            }
            self.back();
            let command = self.command(place)?;
            let operands = command.operands.items(&self.templates.tree.operands);
            if stage > 1 && operands.first().is_some_and(Operand::is_literal) {
                return Err(fault(token, format!("non executable command in pipeline stage {stage}")));
            }
            self.open.commands.push(command);
        }
    }

    /// Parses `$a :=`, `$a =` or `$a, $b :=`.
    fn declarations(&mut self, place: Place) -> Outcome<(Vec<VariableId>, bool)> {
        let mut variables = Vec::new();
        loop {
            let variable = self.peek();
            if variable.kind != Kind::Variable {
                return if variables.is_empty() {
                    Ok((variables, false))
                } else {
                    Err(self.only_variables(variable, variable))
                };
            }
            let start = self.at;
            self.next();
            let next = self.next();
            if matches!(next.kind, Kind::Assign | Kind::Declare) {
                variables.push(self.declare(variable)?);
                return Ok((variables, next.kind == Kind::Assign));
            }
            if next.kind == Kind::Comma && place == Place::Range && variables.is_empty() {
                variables.push(self.declare(variable)?);
                continue;
            }
            if next.kind == Kind::Comma {
                return Err(fault(variable, format!("too many declarations in {}", place.name())));
            }
            if !variables.is_empty() || next.kind == Kind::Fault {
                return Err(self.only_variables(variable, next));
            }
            // An operand, not a declaration.
            self.at = start;
            return Ok((variables, false));
        }
    }

    /// The fault of an operand among declarations; the lexer's own if it has ended at `next`.
    fn only_variables(&self, operand: Token, next: Token) -> Fault {
        if next.kind == Kind::Fault {
            return self.tokens.fault();
        }
        fault(operand, "range can only initialize variables")
    }

    fn declare(&mut self, token: Token) -> Outcome<VariableId> {
        let name: &'t str = self.slice(token);
        let id = self
            .names
            .intern(name)
            .ok_or_else(|| Fault::limit("the template has more than 65535 variables").at(token.span()))?;
        self.scope.declare(id);
        Ok(id)
    }

    fn command(&mut self, place: Place) -> Outcome<Command> {
        let start = offset(self.peek().start);
        let first = self.open.operands.len();
        loop {
            if let Some(operand) = self.operand()? {
                self.open.operands.push(operand);
                if self.peek().follows_space {
                    continue;
                }
            }
            let token = self.next();
            if matches!(token.kind, Kind::RightDelimiter | Kind::RightParen) {
                self.back();
            } else if token.kind != Kind::Pipe {
                let place = if self.open.operands.len() == first { place.name() } else { "operand" };
                return Err(self.unexpected(token, place));
            }
            let Some(last) = self.open.operands[first..].last() else {
                return Err(fault(token, "empty command"));
            };
            let span = (start, last.span.1);
            let operands = close(&mut self.open.operands, first, &mut self.templates.tree.operands);
            return Ok(Command { span, operands });
        }
    }

    fn operand(&mut self) -> Outcome<Option<Operand>> {
        let token = self.next();
        let mut fields = Vec::new();
        let term = match token.kind {
            Kind::Identifier => self.function(token)?,
            Kind::Dot => Term::Dot,
            Kind::Keyword(Keyword::Nil) => Term::Nil,
            Kind::Variable => Term::Variable(self.variable(token)?),
            Kind::Field => {
                fields.push(Text::from(&self.slice(token)[1..]));
                Term::Dot
            }
            Kind::Bool => Term::Bool(self.slice(token) == "true"),
            Kind::Number => {
                number::number(self.slice(token)).map(Term::Number).map_err(|why| fault(token, why))?
            }
            Kind::Character => {
                let code = number::character(self.slice(token)).map_err(|why| fault(token, why))?;
                Term::Number(number::Number { int: Some(code), float: code as f64, is_float: false })
            }
            Kind::Str => {
                Term::Str((&*number::unquote(self.slice(token)).map_err(|why| fault(token, why))?).into())
            }
            Kind::LeftParen => Term::Paren(Box::new(self.nested(token, |parser| parser.pipe(Place::Paren))?)),
            Kind::Text
            | Kind::LeftDelimiter
            | Kind::RightDelimiter
            | Kind::Assign
            | Kind::Declare
            | Kind::Pipe
            | Kind::Comma
            | Kind::RightParen
            | Kind::Keyword(_)
            | Kind::Other
            | Kind::Fault
            | Kind::End => {
                self.back();
                return Ok(None);
            }
        };
        let has_fields = !fields.is_empty()
            || matches!(term, Term::Variable(_) | Term::Function(_) | Term::Denied(_) | Term::Paren(_));
        let mut end = self.ended();
        loop {
            let next = self.peek();
            if next.kind != Kind::Field || next.follows_space {
                break;
            }
            if !has_fields {
                return Err(fault(next, format!("unexpected . after term {:?}", self.slice(token))));
            }
            self.next();
            end = next.end;
            fields.push(Text::from(&self.slice(next)[1..]));
        }
        Ok(Some(Operand { span: (offset(token.start), offset(end)), term, fields }))
    }

    fn function(&self, token: Token) -> Outcome<Term> {
        let name = self.slice(token);
        let Some(function) = functions::find(name) else {
            let near = functions::nearest(name).map(|near| format!("; did you mean {near}?"));
            let message = format!("function {name:?} not defined{}", near.unwrap_or_default());
            return Err(fault(token, message));
        };
        let is_denied = self.options.denylist.iter().any(|pattern| functions::matches_pattern(pattern, name));
        Ok(if is_denied { Term::Denied(function.name) } else { Term::Function(function) })
    }

    fn variable(&self, token: Token) -> Outcome<VariableId> {
        let name = self.slice(token);
        self.names
            .get(name)
            .filter(|id| self.scope.contains(*id))
            .ok_or_else(|| fault(token, format!("undefined variable {name:?}")))
    }
}

/// Leaves out space at the end.
fn trimmed(text: &str, start: usize, end: usize) -> Span {
    let part = text.as_bytes()[start..end].trim_ascii_end();
    (offset(start), offset(start + part.len()))
}
