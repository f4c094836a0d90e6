//! A grammar of plain text as the grammar of the same text inside a JSON string: what a custom tool's input is in the notations of
//! most model families. Literals and expressions are rewritten character by character (`"`, `\` and control characters have one
//! spelling each), rules stay. The spelling is a prefix code, so that alternatives, repetition, intersection and longest matches
//! mean what they meant. What would not survive that, or reaches outside of the text, is refused by name.

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look, Repetition};
use regex_syntax::ParserBuilder;
use serde_json::Value;

use crate::border::Failure;
use crate::{INVALID, UNSUPPORTED};

const MAX_NESTING: u32 = 200;

/// Lark's common terminals (lark-parser's grammars/common.lark).
const COMMON: &[(&str, &str)] = &[
    ("DIGIT", "[0-9]"),
    ("HEXDIGIT", "[a-fA-F0-9]"),
    ("INT", "[0-9]+"),
    ("SIGNED_INT", r"(\+|-)?[0-9]+"),
    ("DECIMAL", r"([0-9]+\.[0-9]*)|(\.[0-9]+)"),
    ("FLOAT", r"([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+"),
    ("SIGNED_FLOAT", r"(\+|-)?(([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+)"),
    ("NUMBER", r"([0-9]+)|([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+"),
    ("SIGNED_NUMBER", r"(\+|-)?(([0-9]+)|([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+)"),
    ("ESCAPED_STRING", r#""([^"\\]|\\.)*""#),
    ("LCASE_LETTER", "[a-z]"),
    ("UCASE_LETTER", "[A-Z]"),
    ("LETTER", "[A-Za-z]"),
    ("WORD", "[A-Za-z]+"),
    ("CNAME", "[_A-Za-z][_A-Za-z0-9]*"),
    ("WS_INLINE", r"[ \t]+"),
    ("WS", r"[ \t\f\r\n]+"),
    ("CR", r"\r"),
    ("LF", r"\n"),
    ("NEWLINE", r"(\r?\n)+"),
    ("SH_COMMENT", r"#[^\n]*"),
    ("CPP_COMMENT", r"//[^\n]*"),
    ("C_COMMENT", r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/"),
    ("SQL_COMMENT", r"--[^\n]*"),
];

fn refused(what: &str) -> Failure {
    Failure::new(UNSUPPORTED, format!("{what} cannot be used in the grammar of a custom tool"))
}

fn quoted_char(c: char) -> Option<String> {
    match c {
        '"' => Some("\\\"".into()),
        '\\' => Some("\\\\".into()),
        '\n' => Some("\\n".into()),
        '\r' => Some("\\r".into()),
        '\t' => Some("\\t".into()),
        '\u{8}' => Some("\\b".into()),
        '\u{c}' => Some("\\f".into()),
        c if (c as u32) < 0x20 => Some(format!("\\u{:04x}", c as u32)),
        _ => None,
    }
}

fn quoted_text(text: &str) -> String {
    text.chars().map(|c| quoted_char(c).unwrap_or_else(|| c.to_string())).collect()
}

/// Its characters that stand as they are, and the others.
fn split_class(class: &ClassUnicode) -> (ClassUnicode, Vec<char>) {
    let contains = |c: char| class.iter().any(|r| r.start() <= c && c <= r.end());
    let special: Vec<char> = (0..0x20u32).filter_map(char::from_u32).chain(['"', '\\']).filter(|&c| contains(c)).collect();
    let mut plain = class.clone();
    plain.difference(&ClassUnicode::new(special.iter().map(|&c| ClassUnicodeRange::new(c, c))));
    (plain, special)
}

fn quoted_class(class: &ClassUnicode) -> Hir {
    let (plain, special) = split_class(class);
    let mut any: Vec<Hir> = special.iter().map(|&c| Hir::literal(quoted_char(c).unwrap_or_default().into_bytes())).collect();
    if !plain.ranges().is_empty() || any.is_empty() {
        any.insert(0, Hir::class(Class::Unicode(plain)));
    }
    Hir::alternation(any)
}

fn quoted(hir: &Hir) -> Result<Hir, Failure> {
    let all = |parts: &[Hir]| parts.iter().map(quoted).collect::<Result<Vec<_>, _>>();
    Ok(match hir.kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(bytes) => match std::str::from_utf8(&bytes.0) {
            Ok(text) => Hir::literal(quoted_text(text).into_bytes()),
            Err(_) => return Err(refused("an expression of bytes")),
        },
        HirKind::Class(Class::Unicode(class)) => quoted_class(class),
        HirKind::Class(Class::Bytes(class)) => match class.to_unicode_class() {
            Some(class) => quoted_class(&class),
            None => return Err(refused("an expression of bytes")),
        },
        HirKind::Look(_) => return Err(refused("an anchor or a word boundary")),
        HirKind::Repetition(r) => {
            if !r.greedy {
                return Err(refused("a lazy repetition"));
            }
            Hir::repetition(Repetition { sub: Box::new(quoted(&r.sub)?), ..r.clone() })
        }
        HirKind::Capture(capture) => quoted(&capture.sub)?,
        HirKind::Concat(parts) => Hir::concat(all(parts)?),
        HirKind::Alternation(parts) => Hir::alternation(all(parts)?),
    })
}

fn parse_regex(pattern: &str, flags: &str) -> Result<Hir, Failure> {
    let has = |flag| flags.contains(flag);
    if has('l') {
        return Err(refused("the flag \"l\" of an expression"));
    }
    ParserBuilder::new()
        .nest_limit(MAX_NESTING)
        .case_insensitive(has('i'))
        .multi_line(has('m'))
        .dot_matches_new_line(has('s'))
        .ignore_whitespace(has('x'))
        .build()
        .parse(pattern)
        .map_err(|e| Failure::new(INVALID, format!("invalid expression: {e}")))
}

/// As a terminal of Lark.
fn terminal(hir: &Hir) -> String {
    let mut out = String::from("/");
    let pattern = hir.to_string();
    let mut escaped = false;
    for c in pattern.chars() {
        if c == '/' && !escaped {
            out.push('\\');
        }
        escaped = c == '\\' && !escaped;
        out.push(c);
    }
    if pattern.is_empty() {
        out.push_str("(?:)");
    }
    out.push('/');
    out
}

/// The expression, matched by the whole text; anchors at its ends say nothing new.
pub fn regex(pattern: &str) -> Result<String, Failure> {
    let hir = parse_regex(pattern, "")?;
    let anchor = |h: &Hir, look: Look| matches!(h.kind(), HirKind::Look(l) if *l == look);
    let inner = match hir.kind() {
        HirKind::Concat(parts) => {
            let begin = usize::from(anchor(&parts[0], Look::Start));
            let end = parts.len() - usize::from(anchor(&parts[parts.len() - 1], Look::End));
            Hir::concat(parts[begin..end].to_vec())
        }
        _ => hir,
    };
    Ok(terminal(&quoted(&inner)?))
}

/// The grammar as the inner lines of a `%lark { }`.
///
/// llguidance's lexer looks one byte ahead and never goes back: after a terminal that may go on with one escape it cannot end it
/// before another (`/.*/ "\n"` would stop at the `\`). So a grammar without recursion becomes one terminal, in which that question
/// does not arise. In a recursive one the classes of its terminals lose the characters that need escapes, unless they consist of
/// nothing else: it accepts less, never more.
pub fn lark(source: &str) -> Result<String, Failure> {
    let tokens = Lexer { rest: source, tokens: Vec::new(), at_line: true }.run()?;
    let statements = statements(tokens)?;
    if is_recursive(&statements) {
        rules(&statements)
    } else {
        one_terminal(&statements)
    }
}

#[derive(Clone)]
enum Token {
    Newline,
    Name(String),
    Text(String),
    Expression(Hir),
    Ignore,
    Import(String, Hir),
    Alias,
    Other(char),
}

struct Lexer<'a> {
    rest: &'a str,
    tokens: Vec<Token>,
    at_line: bool, // only blanks since the line began
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

impl<'a> Lexer<'a> {
    fn take(&mut self, size: usize) -> &'a str {
        let (head, tail) = self.rest.split_at(size);
        self.rest = tail;
        head
    }

    fn next_char(&self) -> Option<char> {
        self.rest.trim_start_matches([' ', '\t']).chars().next()
    }

    fn run(mut self) -> Result<Vec<Token>, Failure> {
        while let Some(c) = self.rest.chars().next() {
            if c == '#' || self.rest.starts_with("//") {
                self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
                continue;
            }
            let begins = self.at_line;
            self.at_line = c == '\n' || (begins && c.is_whitespace());
            match c {
                '\n' => {
                    self.take(1);
                    self.tokens.push(Token::Newline);
                }
                '"' => self.string()?,
                '/' => self.expression()?,
                '%' => self.directive()?,
                '<' => return Err(refused("a special token")),
                '@' => return Err(refused("a reference to another grammar")),
                '~' => {
                    self.take(1);
                    if !self.next_char().is_some_and(|c| c.is_ascii_digit()) {
                        return Err(refused("the complement of a terminal (\"~\")"));
                    }
                    self.tokens.push(Token::Other('~'));
                }
                '-' if self.rest.starts_with("->") => {
                    self.take(2);
                    let blanks = self.rest.len() - self.rest.trim_start_matches([' ', '\t']).len();
                    self.take(blanks);
                    self.take(self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len()));
                    self.tokens.push(Token::Alias);
                }
                '?' | '!' if begins => {
                    self.take(1); // how a tree is built says nothing of the text
                    self.at_line = true;
                }
                c if c.is_ascii_alphabetic() || c == '_' => {
                    let size = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
                    let name = self.take(size).to_string();
                    if begins && self.next_char() == Some('[') {
                        return Err(refused("an attribute in brackets after a rule's name"));
                    }
                    if begins && self.next_char() == Some('{') {
                        return Err(refused("a template of rules"));
                    }
                    self.tokens.push(Token::Name(name));
                }
                c => {
                    self.take(c.len_utf8());
                    self.tokens.push(Token::Other(c));
                }
            }
        }
        self.tokens.push(Token::Newline);
        Ok(self.tokens)
    }

    /// A string literal that begins here: its text and whether case counts.
    fn literal(&mut self) -> Result<(String, bool), Failure> {
        let token = self.delimited('"', "a string without its end")?;
        let text = serde_json::from_str(token).map_err(|e| Failure::new(INVALID, format!("{token} is no string: {e}")))?;
        let any_case = self.rest.starts_with('i') && !self.rest[1..].starts_with(is_name);
        if any_case {
            self.take(1);
        }
        Ok((text, any_case))
    }

    fn delimited(&mut self, mark: char, unended: &str) -> Result<&'a str, Failure> {
        let mut escaped = false;
        let end = self.rest[1..].char_indices().find(|&(_, c)| {
            let closes = c == mark && !escaped;
            escaped = c == '\\' && !escaped;
            closes
        });
        match end {
            Some((end, _)) => Ok(self.take(end + 2)),
            None => Err(Failure::new(INVALID, unended)),
        }
    }

    fn string(&mut self) -> Result<(), Failure> {
        let (text, any_case) = self.literal()?;
        let ahead = self.rest.trim_start_matches([' ', '\t']);
        if let Some(second) = ahead.strip_prefix("..") {
            let second = second.trim_start_matches([' ', '\t']);
            if second.starts_with('"') {
                self.rest = second;
                let (last, _) = self.literal()?;
                let range = format!("[{}-{}]", regex_syntax::escape(&text), regex_syntax::escape(&last));
                self.tokens.push(Token::Expression(parse_regex(&range, "")?));
                return Ok(());
            }
        }
        self.tokens.push(match any_case {
            true => Token::Expression(parse_regex(&regex_syntax::escape(&text), "i")?),
            false => Token::Text(text),
        });
        Ok(())
    }

    fn expression(&mut self) -> Result<(), Failure> {
        let token = self.delimited('/', "an expression without its end")?;
        let flags = self.take(self.rest.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(self.rest.len()));
        self.tokens.push(Token::Expression(parse_regex(&token[1..token.len() - 1], flags)?));
        Ok(())
    }

    fn directive(&mut self) -> Result<(), Failure> {
        let size = self.rest[1..].find(|c: char| !c.is_ascii_alphabetic()).map_or(self.rest.len(), |n| n + 1);
        match self.take(size) {
            "%ignore" => self.tokens.push(Token::Ignore),
            "%import" => {
                let line = self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
                self.import(line.split("//").next().unwrap_or(line).trim())?;
            }
            word => return Err(refused(&format!("\"{word}\""))),
        }
        Ok(())
    }

    /// `common.NAME`, `common.NAME -> OTHER` or `common (NAME, ...)`.
    fn import(&mut self, line: &str) -> Result<(), Failure> {
        let Some(names) = line.strip_prefix("common") else { return Err(refused(&format!("\"%import {line}\""))) };
        let names = names.trim();
        let mut pairs = Vec::new();
        if let Some(list) = names.strip_prefix('(').and_then(|l| l.strip_suffix(')')) {
            pairs.extend(list.split(',').map(|n| (n.trim(), n.trim())));
        } else if let Some(one) = names.strip_prefix('.') {
            let (name, alias) = one.split_once("->").unwrap_or((one, one));
            pairs.push((name.trim(), alias.trim()));
        }
        if pairs.is_empty() {
            return Err(Failure::new(INVALID, format!("\"%import {line}\" cannot be read")));
        }
        for (name, alias) in pairs {
            let Some((_, pattern)) = COMMON.iter().find(|(known, _)| *known == name) else {
                return Err(Failure::new(INVALID, format!("there is no common terminal \"{name}\"")));
            };
            self.tokens.push(Token::Import(alias.to_string(), parse_regex(pattern, "")?));
        }
        Ok(())
    }
}

/// A rule or terminal and its right side, or what is ignored (without a name).
struct Statement {
    name: String,
    body: Vec<Token>,
}

impl Statement {
    fn is_rule(&self) -> bool {
        is_rule_name(&self.name)
    }
}

fn is_rule_name(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(|c: char| c.is_ascii_lowercase())
}

/// Lines whose first word is followed by a colon, maybe after a priority, begin a statement; others go on with it.
fn statements(tokens: Vec<Token>) -> Result<Vec<Statement>, Failure> {
    let mut all: Vec<Statement> = Vec::new();
    for line in tokens.split(|t| matches!(t, Token::Newline)) {
        let line: Vec<Token> = line.iter().filter(|t| !matches!(t, Token::Other(c) if c.is_whitespace())).cloned().collect();
        let head = match line.first() {
            Some(Token::Name(name)) => {
                let priority = line[1..].iter().take_while(|t| matches!(t, Token::Other(c) if c.is_ascii_digit() || *c == '.')).count();
                matches!(line.get(1 + priority), Some(Token::Other(':'))).then(|| (name.clone(), 2 + priority))
            }
            Some(Token::Ignore) => Some((String::new(), 1)),
            _ => None,
        };
        let rest = match head {
            Some((name, size)) => {
                all.push(Statement { name, body: Vec::new() });
                &line[size..]
            }
            None => &line[..],
        };
        for token in rest {
            match (token, all.last_mut()) {
                (Token::Import(name, hir), _) => all.push(Statement { name: name.clone(), body: vec![Token::Expression(hir.clone())] }),
                (token, Some(statement)) => statement.body.push(token.clone()),
                (_, None) => return Err(Failure::new(INVALID, "it does not begin with a rule")),
            }
        }
    }
    Ok(all)
}

fn is_recursive(statements: &[Statement]) -> bool {
    let at = |name: &str| statements.iter().position(|s| s.name == name);
    // 0 = not seen, 1 = being looked at, 2 = done; by hand, since grammars may be deep.
    let mut state = vec![0u8; statements.len()];
    for first in 0..statements.len() {
        let mut path = vec![(first, 0usize)];
        while let Some((index, next)) = path.pop() {
            if next == 0 {
                match state[index] {
                    1 => return true,
                    2 => continue,
                    _ => state[index] = 1,
                }
            }
            let Some(token) = statements[index].body.get(next) else {
                state[index] = 2;
                continue;
            };
            path.push((index, next + 1));
            if let Token::Name(name) = token {
                if let Some(to) = at(name) {
                    path.push((to, 0));
                }
            }
        }
    }
    false
}

fn atom(token: &Token, narrow: bool) -> Result<Option<String>, Failure> {
    Ok(match token {
        Token::Text(text) => Some(Value::String(quoted_text(text)).to_string()),
        Token::Expression(hir) if narrow => Some(terminal(&quoted(&narrowed(hir))?)),
        Token::Expression(hir) => Some(terminal(&quoted(hir)?)),
        _ => None,
    })
}

/// Classes without the characters that need escapes.
fn narrowed(hir: &Hir) -> Hir {
    let all = |parts: &[Hir]| parts.iter().map(narrowed).collect::<Vec<_>>();
    match hir.kind() {
        HirKind::Class(Class::Unicode(class)) => {
            let (plain, special) = split_class(class);
            let keep = plain.ranges().is_empty() || special.is_empty();
            Hir::class(Class::Unicode(if keep { class.clone() } else { plain }))
        }
        HirKind::Repetition(r) => Hir::repetition(Repetition { sub: Box::new(narrowed(&r.sub)), ..r.clone() }),
        HirKind::Capture(capture) => narrowed(&capture.sub),
        HirKind::Concat(parts) => Hir::concat(all(parts)),
        HirKind::Alternation(parts) => Hir::alternation(all(parts)),
        _ => hir.clone(),
    }
}

fn rules(statements: &[Statement]) -> Result<String, Failure> {
    let mut out = String::new();
    for statement in statements {
        match statement.name.as_str() {
            "" => out.push_str("%ignore"),
            name => out.push_str(&format!("{name}:")),
        }
        for token in &statement.body {
            match token {
                Token::Name(name) => append(&mut out, name),
                Token::Other(c) => append(&mut out, &c.to_string()),
                other => append(&mut out, &atom(other, true)?.unwrap_or_default()),
            }
        }
        out.push('\n');
    }
    Ok(out)
}

fn one_terminal(statements: &[Statement]) -> Result<String, Failure> {
    let ignored: Vec<_> = statements.iter().filter(|s| s.name.is_empty()).collect();
    let upper = |name: &str| match is_rule_name(name) {
        true => format!("R_{}", name.to_ascii_uppercase()),
        false => name.to_string(),
    };
    let skip = if ignored.is_empty() { "" } else { " IGNORED_Z*" };
    let mut out = String::from("start: R_START\n");
    let mut ignores = Vec::new();
    for statement in statements {
        // Ignored text may stand after every terminal of a rule.
        let skips = statement.is_rule() && !skip.is_empty();
        let mut body = String::new();
        for token in &statement.body {
            let text = match token {
                Token::Name(name) => Some(upper(name)),
                other => atom(other, false)?,
            };
            let is_terminal = !matches!(token, Token::Name(name) if is_rule_name(name));
            match (text, token) {
                (Some(text), _) if skips && is_terminal => append(&mut body, &format!("({text}{skip})")),
                (Some(text), _) => append(&mut body, &text),
                (None, Token::Other(c)) => append(&mut body, &c.to_string()),
                _ => {}
            }
        }
        if statement.name.is_empty() {
            ignores.push(format!("({body} )"));
        } else {
            out.push_str(&format!("{}:{body}\n", upper(&statement.name)));
        }
    }
    if !ignores.is_empty() {
        out.push_str(&format!("IGNORED_Z: {}\n", ignores.join(" | ")));
    }
    Ok(out)
}

/// Numbers and `..` come a character at a time and stay together.
fn append(out: &mut String, text: &str) {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit() || c == '.');
    if !(part(out.chars().last()) && part(text.chars().next())) {
        out.push(' ');
    }
    out.push_str(text);
}
