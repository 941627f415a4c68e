//! Tokens → tree. Recursion is bounded by [`crate::Limits::nesting`].

mod pipe;
mod scope;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    ast::{Branch, Branches, Node, Part, Span, Tree},
    error::{Fault, Outcome},
    lex::{self, Keyword, Kind, Token, Tokens},
    number,
    options::Options,
};

use scope::{Names, Scope};

/// The templates of a text.
pub(crate) struct Templates {
    pub(crate) tree: Tree,
    /// Their nodes by name. The main one has an empty name.
    by_name: BTreeMap<Arc<str>, Part>,
}

impl Templates {
    /// The nodes of a template.
    pub(crate) fn get(&self, name: &str) -> Option<Part> {
        self.by_name.get(name).copied()
    }
}

/// Parses a text.
pub(crate) fn parse(text: &str, options: &Options) -> Outcome<Templates> {
    if text.len() > options.limits.source_bytes {
        let message = format!("the template has more than {} bytes", options.limits.source_bytes);
        return Err(Fault::limit(message));
    }
    let (left, right) = options.delimiters();
    let tokens = lex::tokens(text, left, right);
    let tree = Tree::with_capacity(tokens.len());
    let mut parser = Parser {
        text,
        options,
        tokens,
        at: 0,
        open: Tree::default(),
        templates: Templates { tree, by_name: BTreeMap::new() },
        blank: BTreeSet::new(),
        names: Names::new(),
        scope: Scope::new(),
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
    tokens: Tokens,
    /// The index of the next token. The last one follows itself.
    at: usize,
    /// The parts that are not complete.
    open: Tree,
    templates: Templates,
    /// Names of templates that contain only space.
    blank: BTreeSet<Arc<str>>,
    names: Names<'t>,
    /// Variables that are visible here.
    scope: Scope,
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

/// Makes a part of all items from `start` that are not in one yet.
fn close<T>(open: &mut Vec<T>, start: usize, list: &mut Vec<T>) -> Part {
    let first = list.len();
    list.extend(open.drain(start..));
    Part::new(first, list.len())
}

fn fault(token: Token, message: impl Into<String>) -> Fault {
    Fault::syntax(message, token.span())
}

impl<'t> Parser<'t> {
    #[inline]
    fn next(&mut self) -> Token {
        let token = self.peek();
        self.at += 1;
        token
    }

    /// Goes back to the token before.
    fn back(&mut self) {
        self.at -= 1;
    }

    #[inline]
    fn peek(&self) -> Token {
        self.tokens.get(self.at)
    }

    /// The end of the token that was read last.
    fn ended(&self) -> usize {
        self.tokens.get(self.at - 1).end
    }

    fn slice(&self, token: Token) -> &'t str {
        &self.text[token.start..token.end]
    }

    /// The fault of a token that does not belong here, or the lexer's own.
    fn unexpected(&self, token: Token, place: &str) -> Fault {
        if token.kind == Kind::Fault {
            return self.tokens.fault();
        }
        let what = if token.kind == Kind::End {
            "end of the text".to_owned()
        } else if token.kind == Kind::RightDelimiter {
            format!("{:?}", self.options.delimiters().1)
        } else {
            format!("{:?}", self.slice(token))
        };
        fault(token, format!("unexpected {what} in {place}"))
    }

    fn expect(&mut self, kind: Kind, place: &str) -> Outcome<Token> {
        let token = self.next();
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

    fn root(&mut self) -> Outcome<Part> {
        let (nodes, ending, token) = self.list(Level::Top)?;
        match ending {
            Ending::Eof => Ok(nodes),
            Ending::End => Err(self.unexpected(token, "the text outside of blocks")),
            Ending::Else | Ending::ElseIf(_) => Err(fault(token, "unexpected {{else}}")),
        }
    }

    /// Parses nodes until `end`, `else` or the end of the text. Definitions are allowed at the top only.
    fn list(&mut self, level: Level) -> Outcome<(Part, Ending, Token)> {
        let start = self.open.nodes.len();
        let (ending, token) = self.nodes(level)?;
        Ok((close(&mut self.open.nodes, start, &mut self.templates.tree.nodes), ending, token))
    }

    fn nodes(&mut self, level: Level) -> Outcome<(Ending, Token)> {
        loop {
            let token = self.next();
            if token.kind == Kind::Text {
                self.open.nodes.push(Node::Text(token.span()));
                continue;
            }
            if token.kind == Kind::End {
                return Ok((Ending::Eof, token));
            }
            let first = self.next();
            let Kind::Keyword(keyword) = first.kind else {
                self.back();
                let pipe = self.pipe(Place::Action)?;
                self.open.nodes.push(Node::Action(pipe));
                continue;
            };
            match keyword {
                Keyword::End => {
                    self.expect(Kind::RightDelimiter, "end")?;
                    return Ok((Ending::End, first));
                }
                Keyword::Else => return Ok((self.ending_of_else()?, first)),
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
                    let node = self.nested(first, |parser| parser.control(keyword, first))?;
                    self.open.nodes.push(node);
                }
            }
        }
    }

    fn ending_of_else(&mut self) -> Outcome<Ending> {
        let next = self.next();
        if next.kind == Kind::RightDelimiter {
            Ok(Ending::Else)
        } else if let Kind::Keyword(keyword @ (Keyword::If | Keyword::With)) = next.kind {
            Ok(Ending::ElseIf(keyword))
        } else {
            Err(self.unexpected(next, "else"))
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
                if self.ranges == 0 {
                    return Err(fault(token, format!("{} outside of range", self.slice(token))));
                }
                Ok(if keyword == Keyword::Break { Node::Break } else { Node::Continue })
            }
            Keyword::Nil => {
                self.back();
                Ok(Node::Action(self.pipe(Place::Action)?))
            }
            Keyword::Define | Keyword::Else | Keyword::End => Err(self.unexpected(token, "an action")),
        }
    }

    fn branches(&mut self, keyword: Keyword, place: Place) -> Outcome<Branches> {
        let visible = self.scope.len();
        let start = self.open.branches.len();
        let otherwise = loop {
            let pipe = self.pipe(place)?;
            let (body, ending, token) = self.list(Level::Block)?;
            self.open.branches.push(Branch { pipe, body });
            match ending {
                Ending::End => break Part::default(),
                Ending::Else => break self.last_list()?,
                Ending::ElseIf(again) if again == keyword => {}
                Ending::ElseIf(_) => {
                    return Err(fault(token, format!("a different block after else in {}", place.name())));
                }
                Ending::Eof => return Err(self.unexpected(token, place.name())),
            }
        };
        self.scope.truncate(visible);
        let branches = close(&mut self.open.branches, start, &mut self.templates.tree.branches);
        Ok(Branches { branches, otherwise })
    }

    fn last_list(&mut self) -> Outcome<Part> {
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
        let around = self.ranges;
        self.ranges += 1;
        let (body, ending, token) = self.list(Level::Block)?;
        self.ranges = around;
        let otherwise = match ending {
            Ending::End => Part::default(),
            Ending::Else => self.last_list()?,
            Ending::ElseIf(_) => return Err(fault(token, "a different block after else in range")),
            Ending::Eof => return Err(self.unexpected(token, "range")),
        };
        self.scope.truncate(visible);
        Ok(Node::Range { pipe, body, otherwise })
    }

    fn call(&mut self) -> Outcome<Node> {
        let token = self.next();
        let name = self.template_name(token, Place::Template)?;
        let pipe = if self.peek().kind == Kind::RightDelimiter {
            self.next();
            None
        } else {
            Some(self.pipe(Place::Template)?)
        };
        Ok(Node::Template { name, pipe, span: token.span() })
    }

    fn block(&mut self, token: Token) -> Outcome<Node> {
        let name_token = self.next();
        let name = self.template_name(name_token, Place::Block)?;
        let pipe = self.pipe(Place::Block)?;
        let body = self.body(token)?;
        self.define(&name, body, name_token.span())?;
        Ok(Node::Template { name, pipe: Some(pipe), span: name_token.span() })
    }

    fn definition(&mut self, token: Token) -> Outcome<()> {
        let name_token = self.next();
        let name = self.template_name(name_token, Place::Template)?;
        self.expect(Kind::RightDelimiter, "define clause")?;
        let body = self.body(token)?;
        self.define(&name, body, name_token.span())
    }

    /// Parses the body of another template, which sees no variable but `$`.
    fn body(&mut self, token: Token) -> Outcome<Part> {
        let scope = std::mem::replace(&mut self.scope, Scope::new());
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
    fn define(&mut self, name: &str, nodes: Part, span: Span) -> Outcome<()> {
        let is_blank = nodes.items(&self.templates.tree.nodes).iter().all(|node| self.is_blank(node));
        if self.templates.by_name.contains_key(name) && !self.blank.contains(name) {
            if is_blank {
                return Ok(());
            }
            let message = format!("multiple definition of template {name:?}");
            return Err(Fault::syntax(message, span));
        }
        let name: Arc<str> = name.into();
        if is_blank {
            self.blank.insert(Arc::clone(&name));
        } else {
            self.blank.remove(&name);
        }
        self.templates.by_name.insert(name, nodes);
        Ok(())
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
}
