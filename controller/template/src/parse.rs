//! Tokens → tree. Recursion is bounded by [`crate::Limits::nesting`].

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    ast::{Branches, Command, Node, Operand, Pipe, ROOT_VARIABLE, Span, Term, VariableId},
    error::{ErrorKind, Fault, Outcome},
    functions,
    lex::{Keyword, Kind, Lexer, Token, offset},
    number,
    options::Options,
    text::Text,
};

/// The templates of a text by name. The main one has an empty name.
pub(crate) type Templates = BTreeMap<Arc<str>, Vec<Node>>;

/// Parses a text.
pub(crate) fn parse(text: &str, options: &Options) -> Outcome<Templates> {
    if text.len() > options.limits.source_bytes {
        let message = format!("the template has more than {} bytes", options.limits.source_bytes);
        return Err(Fault::limit(message));
    }
    let (left, right) = options.delimiters();
    let mut parser = Parser {
        text,
        options,
        lexer: Lexer::new(text, left, right),
        pushed_back: Vec::new(),
        templates: Templates::new(),
        names: vec!["$"],
        scope: vec![ROOT_VARIABLE],
        ranges: 0,
        nesting: 0,
    };
    let root = parser.root()?;
    parser.define("", root, (0, 0))?;
    Ok(parser.templates)
}

struct Parser<'t> {
    text: &'t str,
    options: &'t Options,
    lexer: Lexer<'t>,
    /// Tokens that were read ahead, the next one last.
    pushed_back: Vec<Token>,
    templates: Templates,
    /// All names of variables; their index is the id.
    names: Vec<&'t str>,
    /// Variables that are visible here.
    scope: Vec<VariableId>,
    /// Ranges around this place.
    ranges: usize,
    nesting: usize,
}

/// How a list of nodes ended.
enum Ending {
    End,
    Else,
    /// `else if` or `else with`; the keyword has been read.
    ElseIf(Keyword),
    Eof,
}

/// Where a list of nodes is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Top,
    Block,
}

/// Where a pipeline is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Action,
    If,
    With,
    Range,
    Template,
    Block,
    Paren,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Self::Action => "command",
            Self::If => "if",
            Self::With => "with",
            Self::Range => "range",
            Self::Template => "template clause",
            Self::Block => "block clause",
            Self::Paren => "parenthesized pipeline",
        }
    }
}

fn fault(token: Token, message: impl Into<String>) -> Fault {
    Fault { kind: ErrorKind::Syntax, message: message.into(), span: Some(token.span()) }
}

impl<'t> Parser<'t> {
    fn next(&mut self) -> Outcome<Token> {
        self.pushed_back.pop().map_or_else(|| self.lexer.next(), Ok)
    }

    fn peek(&mut self) -> Outcome<Token> {
        let token = self.next()?;
        self.pushed_back.push(token);
        Ok(token)
    }

    fn next_after_space(&mut self) -> Outcome<Token> {
        loop {
            let token = self.next()?;
            if token.kind != Kind::Space {
                return Ok(token);
            }
        }
    }

    fn peek_after_space(&mut self) -> Outcome<Token> {
        let token = self.next_after_space()?;
        self.pushed_back.push(token);
        Ok(token)
    }

    fn slice(&self, token: Token) -> &'t str {
        &self.text[token.start..token.end]
    }

    fn unexpected(&self, token: Token, place: &str) -> Fault {
        let what = match token.kind {
            Kind::End => "end of the text".to_owned(),
            Kind::RightDelimiter => format!("{:?}", self.options.delimiters().1),
            _ => format!("{:?}", self.slice(token)),
        };
        fault(token, format!("unexpected {what} in {place}"))
    }

    fn expect(&mut self, kind: Kind, place: &str) -> Outcome<Token> {
        let token = self.next_after_space()?;
        if token.kind == kind { Ok(token) } else { Err(self.unexpected(token, place)) }
    }

    /// Parses a part one level deeper.
    fn nested<T>(&mut self, token: Token, parse: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        if self.nesting >= self.options.limits.nesting {
            let message = format!("blocks and parentheses are nested more than {} deep", self.nesting);
            return Err(Fault::limit(message).at(token.span()));
        }
        self.nesting += 1;
        let parsed = parse(self);
        self.nesting -= 1;
        parsed
    }

    fn root(&mut self) -> Outcome<Vec<Node>> {
        let mut nodes = Vec::new();
        loop {
            let (more, ending, token) = self.list(Level::Top)?;
            nodes.extend(more);
            match ending {
                Ending::Eof => return Ok(nodes),
                Ending::End => return Err(self.unexpected(token, "the text outside of blocks")),
                Ending::Else | Ending::ElseIf(_) => return Err(fault(token, "unexpected {{else}}")),
            }
        }
    }

    /// Parses nodes until `end`, `else` or the end of the text. Definitions are allowed at the top only.
    fn list(&mut self, level: Level) -> Outcome<(Vec<Node>, Ending, Token)> {
        let mut nodes = Vec::new();
        loop {
            let token = self.next()?;
            match token.kind {
                Kind::Text => nodes.push(Node::Text(token.span())),
                Kind::End => return Ok((nodes, Ending::Eof, token)),
                _ => {
                    let first = self.next_after_space()?;
                    let Kind::Keyword(keyword) = first.kind else {
                        self.pushed_back.push(first);
                        nodes.push(Node::Action(self.pipe(Place::Action)?));
                        continue;
                    };
                    match keyword {
                        Keyword::End => {
                            self.expect(Kind::RightDelimiter, "end")?;
                            return Ok((nodes, Ending::End, first));
                        }
                        Keyword::Else => return Ok((nodes, self.ending_of_else()?, first)),
                        Keyword::Define if level == Level::Top => {
                            self.nested(first, |parser| parser.definition(first))?;
                        }
                        Keyword::Define => return Err(fault(first, "{{define}} inside of another block")),
                        Keyword::Block
                        | Keyword::Break
                        | Keyword::Continue
                        | Keyword::If
                        | Keyword::Nil
                        | Keyword::Range
                        | Keyword::Template
                        | Keyword::With => {
                            nodes.push(self.nested(first, |parser| parser.control(keyword, first))?);
                        }
                    }
                }
            }
        }
    }

    fn ending_of_else(&mut self) -> Outcome<Ending> {
        let next = self.next_after_space()?;
        match next.kind {
            Kind::RightDelimiter => Ok(Ending::Else),
            Kind::Keyword(keyword @ (Keyword::If | Keyword::With)) => Ok(Ending::ElseIf(keyword)),
            _ => Err(self.unexpected(next, "else")),
        }
    }

    fn control(&mut self, keyword: Keyword, token: Token) -> Outcome<Node> {
        match keyword {
            Keyword::If => Ok(Node::If(self.branches(keyword, Place::If)?)),
            Keyword::With => Ok(Node::With(self.branches(keyword, Place::With)?)),
            Keyword::Range => self.range(),
            Keyword::Template => self.call(),
            Keyword::Block => self.block(token),
            Keyword::Break | Keyword::Continue => {
                self.expect(Kind::RightDelimiter, "break or continue")?;
                match keyword {
                    _ if self.ranges == 0 => {
                        Err(fault(token, format!("{} outside of range", self.slice(token))))
                    }
                    Keyword::Break => Ok(Node::Break),
                    _ => Ok(Node::Continue),
                }
            }
            Keyword::Nil => {
                self.pushed_back.push(token);
                Ok(Node::Action(self.pipe(Place::Action)?))
            }
            Keyword::Define | Keyword::Else | Keyword::End => Err(self.unexpected(token, "an action")),
        }
    }

    fn branches(&mut self, keyword: Keyword, place: Place) -> Outcome<Branches> {
        let visible = self.scope.len();
        let mut branches = Vec::new();
        let otherwise = loop {
            let pipe = self.pipe(place)?;
            let (nodes, ending, token) = self.list(Level::Block)?;
            branches.push((pipe, nodes));
            match ending {
                Ending::End => break Vec::new(),
                Ending::Else => break self.last_list()?,
                Ending::ElseIf(again) if again == keyword => {}
                Ending::ElseIf(_) => {
                    return Err(fault(token, format!("a different block after else in {}", place.name())));
                }
                Ending::Eof => return Err(self.unexpected(token, place.name())),
            }
        };
        self.scope.truncate(visible);
        Ok(Branches { branches, otherwise })
    }

    fn last_list(&mut self) -> Outcome<Vec<Node>> {
        let (nodes, ending, token) = self.list(Level::Block)?;
        match ending {
            Ending::End => Ok(nodes),
            Ending::Else | Ending::ElseIf(_) => Err(fault(token, "expected end; found {{else}}")),
            Ending::Eof => Err(self.unexpected(token, "the last part of a block")),
        }
    }

    fn range(&mut self) -> Outcome<Node> {
        let visible = self.scope.len();
        let pipe = self.pipe(Place::Range)?;
        self.ranges += 1;
        let list = self.list(Level::Block);
        self.ranges -= 1;
        let (body, ending, token) = list?;
        let otherwise = match ending {
            Ending::End => Vec::new(),
            Ending::Else => self.last_list()?,
            Ending::ElseIf(_) => return Err(fault(token, "a different block after else in range")),
            Ending::Eof => return Err(self.unexpected(token, "range")),
        };
        self.scope.truncate(visible);
        Ok(Node::Range { pipe, body, otherwise })
    }

    fn call(&mut self) -> Outcome<Node> {
        let token = self.next_after_space()?;
        let name = self.template_name(token, Place::Template)?;
        let pipe = match self.peek_after_space()?.kind {
            Kind::RightDelimiter => {
                self.next()?;
                None
            }
            _ => Some(self.pipe(Place::Template)?),
        };
        Ok(Node::Template { name, pipe, span: token.span() })
    }

    fn block(&mut self, token: Token) -> Outcome<Node> {
        let name_token = self.next_after_space()?;
        let name = self.template_name(name_token, Place::Block)?;
        let pipe = self.pipe(Place::Block)?;
        let body = self.body(token)?;
        self.define(&name, body, name_token.span())?;
        Ok(Node::Template { name, pipe: Some(pipe), span: name_token.span() })
    }

    fn definition(&mut self, token: Token) -> Outcome<()> {
        let name_token = self.next_after_space()?;
        let name = self.template_name(name_token, Place::Template)?;
        self.expect(Kind::RightDelimiter, "define clause")?;
        let body = self.body(token)?;
        self.define(&name, body, name_token.span())
    }

    /// Parses the body of another template, which sees no variable but `$`.
    fn body(&mut self, token: Token) -> Outcome<Vec<Node>> {
        let scope = std::mem::replace(&mut self.scope, vec![ROOT_VARIABLE]);
        let ranges = std::mem::take(&mut self.ranges);
        let (nodes, ending, _) = self.list(Level::Block)?;
        (self.scope, self.ranges) = (scope, ranges);
        match ending {
            Ending::End => Ok(nodes),
            Ending::Else | Ending::ElseIf(_) => Err(fault(token, "unexpected {{else}} in a definition")),
            Ending::Eof => Err(fault(token, "this definition has no {{end}}")),
        }
    }

    /// Adds a template. An empty one replaces none, and is replaced by any.
    fn define(&mut self, name: &str, nodes: Vec<Node>, span: Span) -> Outcome<()> {
        let is_empty = |nodes: &[Node]| nodes.iter().all(|node| self.is_blank(node));
        let is_new_empty = is_empty(&nodes);
        match self.templates.get(name) {
            Some(known) if !is_empty(known) => {
                if is_new_empty {
                    return Ok(());
                }
                let message = format!("multiple definition of template {name:?}");
                Err(Fault { kind: ErrorKind::Syntax, message, span: Some(span) })
            }
            Some(_) | None => {
                self.templates.insert(name.into(), nodes);
                Ok(())
            }
        }
    }

    fn is_blank(&self, node: &Node) -> bool {
        match node {
            Node::Text((start, end)) => self.text[*start as usize..*end as usize].trim().is_empty(),
            Node::Action(_)
            | Node::If(_)
            | Node::With(_)
            | Node::Range { .. }
            | Node::Template { .. }
            | Node::Break
            | Node::Continue => false,
        }
    }

    fn template_name(&self, token: Token, place: Place) -> Outcome<Arc<str>> {
        if token.kind != Kind::Str {
            return Err(self.unexpected(token, place.name()));
        }
        let name = number::unquote(self.slice(token)).map_err(|message| fault(token, message))?;
        Ok(String::from_utf8_lossy(&name).into())
    }

    /// Parses a pipeline and its end: the right delimiter or the right parenthesis.
    fn pipe(&mut self, place: Place) -> Outcome<Pipe> {
        let start = self.peek_after_space()?.start;
        let (variables, assigns) = self.declarations(place)?;
        let end = if place == Place::Paren { Kind::RightParen } else { Kind::RightDelimiter };
        let mut commands = Vec::new();
        loop {
            let token = self.next_after_space()?;
            if token.kind == end {
                if commands.is_empty() {
                    return Err(fault(token, format!("missing value for {}", place.name())));
                }
                let span = (offset(start), offset(token.start.max(start)));
                return Ok(Pipe { span: trimmed(self.text, span), variables, assigns, commands });
            }
            self.pushed_back.push(token);
            let command = self.command(place)?;
            let is_literal = matches!(
                command.first.term,
                Term::Bool(_) | Term::Nil | Term::Number(_) | Term::Str(_) | Term::Dot
            ) && command.first.fields.is_empty();
            if !commands.is_empty() && is_literal {
                let stage = commands.len() + 1;
                return Err(fault(token, format!("non executable command in pipeline stage {stage}")));
            }
            commands.push(command);
        }
    }

    /// Parses `$a :=`, `$a =` or `$a, $b :=`.
    fn declarations(&mut self, place: Place) -> Outcome<(Vec<VariableId>, bool)> {
        let mut variables = Vec::new();
        loop {
            let variable = self.peek_after_space()?;
            if variable.kind != Kind::Variable {
                return if variables.is_empty() {
                    Ok((variables, false))
                } else {
                    Err(fault(variable, "range can only initialize variables"))
                };
            }
            self.next()?;
            let adjacent = self.peek()?;
            let next = self.next_after_space()?;
            match next.kind {
                Kind::Assign | Kind::Declare => {
                    variables.push(self.declare(variable)?);
                    return Ok((variables, next.kind == Kind::Assign));
                }
                Kind::Comma if place == Place::Range && variables.is_empty() => {
                    variables.push(self.declare(variable)?);
                }
                Kind::Comma => {
                    return Err(fault(variable, format!("too many declarations in {}", place.name())));
                }
                _ if variables.is_empty() => {
                    // An operand, not a declaration.
                    self.pushed_back.push(next);
                    if adjacent.kind == Kind::Space {
                        self.pushed_back.push(adjacent);
                    }
                    self.pushed_back.push(variable);
                    return Ok((variables, false));
                }
                _ => return Err(fault(variable, "range can only initialize variables")),
            }
        }
    }

    fn declare(&mut self, token: Token) -> Outcome<VariableId> {
        let name = self.slice(token);
        let index = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        });
        let id = VariableId::try_from(index)
            .map_err(|_| Fault::limit("the template has more than 65535 variables").at(token.span()))?;
        self.scope.push(id);
        Ok(id)
    }

    fn command(&mut self, place: Place) -> Outcome<Command> {
        let start = self.peek_after_space()?;
        let mut operands = Vec::new();
        let mut end = start.start;
        loop {
            self.peek_after_space()?;
            if let Some(operand) = self.operand()? {
                end = operand.span.1 as usize;
                operands.push(operand);
            }
            let token = self.next()?;
            match token.kind {
                Kind::Space => continue,
                Kind::RightDelimiter | Kind::RightParen => self.pushed_back.push(token),
                Kind::Pipe => {
                    if matches!(
                        self.peek_after_space()?.kind,
                        Kind::RightDelimiter | Kind::RightParen | Kind::Pipe
                    ) {
                        return Err(fault(token, "empty command"));
                    }
                }
                _ if operands.is_empty() => return Err(self.unexpected(token, place.name())),
                _ => return Err(self.unexpected(token, "operand")),
            }
            let mut operands = operands.into_iter();
            let Some(first) = operands.next() else { return Err(fault(token, "empty command")) };
            let span = (offset(start.start), offset(end));
            return Ok(Command { span, first, arguments: operands.collect() });
        }
    }

    fn operand(&mut self) -> Outcome<Option<Operand>> {
        let token = self.next_after_space()?;
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
                Term::Str(number::unquote(self.slice(token)).map_err(|why| fault(token, why))?.into())
            }
            Kind::LeftParen => Term::Paren(Box::new(self.nested(token, |parser| parser.pipe(Place::Paren))?)),
            _ => {
                self.pushed_back.push(token);
                return Ok(None);
            }
        };
        let has_fields = !fields.is_empty()
            || matches!(term, Term::Variable(_) | Term::Function(_) | Term::Denied(_) | Term::Paren(_));
        let mut end = if matches!(term, Term::Paren(_)) { self.peek()?.start } else { token.end };
        loop {
            let next = self.peek()?;
            if next.kind != Kind::Field {
                break;
            }
            if !has_fields {
                return Err(fault(next, format!("unexpected . after term {:?}", self.slice(token))));
            }
            self.next()?;
            end = next.end;
            fields.push(Text::from(&self.slice(next)[1..]));
        }
        let span = trimmed(self.text, (offset(token.start), offset(end)));
        Ok(Some(Operand { span, term, fields }))
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
        let id =
            self.names.iter().position(|known| *known == name).and_then(|id| VariableId::try_from(id).ok());
        id.filter(|id| self.scope.contains(id))
            .ok_or_else(|| fault(token, format!("undefined variable {name:?}")))
    }
}

/// Leaves out space at the end.
fn trimmed(text: &str, (start, end): Span) -> Span {
    let length = text[start as usize..end as usize].trim_end().len();
    (start, start + offset(length))
}
