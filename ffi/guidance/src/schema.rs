//! JSON schemas before llguidance sees them.

use serde_json::{json, Map, Value};

use crate::border::Failure;
use crate::quote;
use crate::{INVALID, LIMIT, UNSUPPORTED};

/// One blank, or a line break with indentation: a model cannot fill its answer with white space (case A66).
const WHITE_SPACE: &str = r"[ ]|\n[ ]{0,40}|\n\t{0,20}";
/// Without `u`: a name spelled with \uXXXX would pass by the schemas of `properties` and `patternProperties`.
const ESCAPES: &str = "nrbtf\\\"";
/// Annotations that llguidance does not list as such.
const ANNOTATIONS: [&str; 2] = ["deprecated", "$vocabulary"];
const MAX_DEPTH: usize = 100;
/// llguidance's own forms of these let the 29th of February pass in every year. Without that day they are right in all.
const DATE: &str = "[12][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
const TIME: &str = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// Parses a schema and sets how it is compiled. `x-guidance` of the source may say only {"lenient": true}: keywords that cannot
/// be enforced are dropped (tools that are not strict).
pub fn prepare(source: &str) -> Result<Value, Failure> {
    let mut schema: Value =
        serde_json::from_str(source).map_err(|e| Failure::new(INVALID, format!("the schema is not JSON: {e}")))?;
    set_options(&mut schema)?;
    Ok(schema)
}

fn set_options(schema: &mut Value) -> Result<(), Failure> {
    match schema {
        Value::Bool(true) => *schema = json!({}),
        Value::Bool(false) => return Err(Failure::new(INVALID, "the schema allows no value")),
        Value::Object(_) => {}
        _ => return Err(Failure::new(INVALID, "a schema is an object or a boolean")),
    }
    let lenient = schema.pointer("/x-guidance/lenient") == Some(&Value::Bool(true));
    clean(schema, true, 0)?;
    if can_close(schema, true) {
        close(schema, true);
    }
    count_names(schema, true, lenient, &mut String::new())?;
    if let Value::Object(members) = schema {
        let options = json!({ "whitespace_pattern": WHITE_SPACE, "lenient": lenient, "json_allowed_escapes": ESCAPES });
        members.insert("x-guidance".into(), options);
    }
    Ok(())
}

/// Drops annotations where `is_schema`; members of `properties` and the like are names, not keywords.
fn clean(value: &mut Value, is_schema: bool, depth: usize) -> Result<(), Failure> {
    if depth > MAX_DEPTH {
        return Err(Failure::new(LIMIT, format!("the schema is nested deeper than {MAX_DEPTH}")));
    }
    match value {
        Value::Object(members) => {
            if is_schema {
                members.shift_remove("x-guidance");
                for name in ANNOTATIONS {
                    members.shift_remove(name);
                }
                narrow_exclusive_bounds(members);
                let pattern = match members.get("format").and_then(Value::as_str) {
                    Some("date") => Some(format!("^{DATE}$")),
                    Some("date-time") => Some(format!("^{DATE}T{TIME}$")),
                    _ => None,
                };
                if let (Some(pattern), false) = (pattern, members.contains_key("pattern")) {
                    members.shift_remove("format");
                    members.insert("pattern".into(), Value::String(pattern));
                }
            }
            for (name, member) in members.iter_mut() {
                if is_data(name, is_schema) {
                    continue;
                }
                let names = is_schema && holds_names(name);
                clean(member, !names, depth + 1)?;
            }
        }
        Value::Array(elements) => {
            for element in elements {
                clean(element, is_schema, depth + 1)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// An object that lists its properties and is silent on others gets no others: as narrow as OpenAI's strict schemas, so that a
/// model finishes. Where schemas of one object are combined, that could leave no document at all: then nothing is closed.
fn can_close(value: &Value, is_schema: bool) -> bool {
    match value {
        Value::Object(members) => {
            let combined = is_schema
                && (members.contains_key("allOf")
                    || (["properties", "required", "minProperties", "additionalProperties"].iter().any(|k| members.contains_key(*k))
                        && ["anyOf", "oneOf", "$ref", "if", "dependentSchemas"].iter().any(|k| members.contains_key(*k))));
            !combined && members.iter().all(|(name, member)| is_data(name, is_schema) || can_close(member, !(is_schema && holds_names(name))))
        }
        Value::Array(elements) => elements.iter().all(|e| can_close(e, is_schema)),
        _ => true,
    }
}

fn close(value: &mut Value, is_schema: bool) {
    match value {
        Value::Object(members) => {
            for (name, member) in members.iter_mut() {
                if !is_data(name, is_schema) {
                    close(member, !(is_schema && holds_names(name)));
                }
            }
            let silent = is_schema && !["additionalProperties", "patternProperties", "unevaluatedProperties"].iter().any(|k| members.contains_key(*k));
            let Some(Value::Object(properties)) = members.get("properties") else { return };
            let required = members.get("required").and_then(Value::as_array);
            let listed = required.is_none_or(|names| names.iter().all(|n| n.as_str().is_some_and(|n| properties.contains_key(n))));
            if silent && listed && !properties.is_empty() {
                members.insert("additionalProperties".into(), Value::Bool(false));
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(|e| close(e, is_schema)),
        _ => {}
    }
}

/// llguidance 1.9.1 lets an exclusive bound itself pass when both bounds share their integer part (2 for more than 2 and at most
/// 2.5). A bound a millionth further in is right.
fn narrow_exclusive_bounds(members: &mut Map<String, Value>) {
    let number = |name: &str| members.get(name).and_then(Value::as_f64);
    let low = [number("minimum"), number("exclusiveMinimum")].into_iter().flatten().fold(f64::NEG_INFINITY, f64::max);
    let high = [number("maximum"), number("exclusiveMaximum")].into_iter().flatten().fold(f64::INFINITY, f64::min);
    let exact = members.get("type").is_some_and(|t| t == "integer");
    if exact || !low.is_finite() || !high.is_finite() || low.trunc() != high.trunc() {
        return;
    }
    for (exclusive, inclusive, step) in [("exclusiveMinimum", "minimum", 1e-6), ("exclusiveMaximum", "maximum", -1e-6)] {
        let Some(bound) = members.get(exclusive).and_then(Value::as_f64) else { continue };
        let other = members.get(inclusive).and_then(Value::as_f64).unwrap_or(bound + step);
        let moved = if step > 0.0 { other.max(bound + step) } else { other.min(bound + step) };
        let rounded: f64 = format!("{moved:.6}").parse().unwrap_or(moved);
        members.shift_remove(exclusive);
        members.insert(inclusive.into(), json!(rounded));
    }
}

/// llguidance lets a name that `properties` does not list come twice, which JSON counts once: a minimum of several such names
/// cannot be enforced.
fn count_names(value: &mut Value, is_schema: bool, lenient: bool, path: &mut String) -> Result<(), Failure> {
    match value {
        Value::Object(members) => {
            let open = members.get("additionalProperties") != Some(&Value::Bool(false)) || members.contains_key("patternProperties");
            let several = members.get("minProperties").and_then(Value::as_f64).is_some_and(|n| n > 1.0);
            if is_schema && open && several {
                if !lenient {
                    let place = if path.is_empty() { "/" } else { path.as_str() };
                    return Err(Failure::new(UNSUPPORTED, format!("the keyword \"minProperties\" at {place} of the schema is not supported above 1 unless all properties are listed")));
                }
                members.shift_remove("minProperties");
            }
            for (name, member) in members.iter_mut() {
                if is_data(name, is_schema) {
                    continue;
                }
                let length = path.len();
                path.push('/');
                path.push_str(name);
                count_names(member, !(is_schema && holds_names(name)), lenient, path)?;
                path.truncate(length);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                count_names(element, is_schema, lenient, path)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn is_data(name: &str, is_schema: bool) -> bool {
    is_schema && matches!(name, "enum" | "const" | "default" | "examples" | "example")
}

fn holds_names(keyword: &str) -> bool {
    matches!(keyword, "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" | "dependencies")
}

/// A custom tool's grammar of its input, as text/grammar writes it: `%custom {"tool", "syntax", "definition"}`.
pub struct Input {
    pub tool: String,
    pub syntax: String,
    pub definition: String,
}

impl Input {
    fn read(value: &Value) -> Option<Input> {
        let member = |name: &str| value.get(name)?.as_str().map(str::to_string);
        Some(Input { tool: member("tool")?, syntax: member("syntax")?, definition: member("definition")? })
    }
    pub fn owner(&self) -> String {
        format!("the {} grammar of the tool \"{}\"", self.syntax, self.tool)
    }
    /// The right side of a rule that matches the input inside a JSON string.
    fn quoted(&self) -> Result<String, Failure> {
        match self.syntax.as_str() {
            "regex" => quote::regex(&self.definition),
            "lark" => quote::lark(&self.definition).map(|rules| format!("%lark {{\n{rules}\n}}")),
            _ => Err(Failure::new(UNSUPPORTED, "its syntax is neither \"lark\" nor \"regex\"")),
        }
        .map_err(|e| e.within(&self.owner()))
    }
}

/// Lark with `%json {...}`, whose schemas get the same options, and `%custom {...}`. Returns the schemas for messages.
pub fn prepare_lark(source: &str, inputs: &mut Vec<Input>) -> Result<(String, Vec<Value>), Failure> {
    const WORDS: [&str; 2] = ["%json", "%custom"];
    let mut out = String::with_capacity(source.len() + 128);
    let mut schemas = Vec::new();
    let mut rest = source;
    while let Some((at, word)) = WORDS.iter().filter_map(|word| Some((rest.find(word)?, *word))).min() {
        let after = &rest[at + word.len()..];
        let mut values = serde_json::Deserializer::from_str(after).into_iter::<Value>();
        let value = values.next().and_then(Result::ok).filter(Value::is_object);
        let size = values.byte_offset();
        out.push_str(&rest[..at]);
        rest = after;
        match (value, word) {
            (Some(mut schema), "%json") => {
                set_options(&mut schema)?;
                out.push_str(&format!("{word} {schema}"));
                schemas.push(schema);
                rest = &after[size..];
            }
            (Some(value), _) => match Input::read(&value) {
                Some(input) => {
                    out.push_str(&input.quoted()?);
                    inputs.push(input);
                    rest = &after[size..];
                }
                None => out.push_str(word),
            },
            _ => out.push_str(word), // not ours to judge: llguidance says what is wrong with it
        }
    }
    out.push_str(rest);
    Ok((out, schemas))
}

/// "Unimplemented keys: [\"uniqueItems\"]" as a sentence that names keyword, place and, where `$comment` says it, tool.
pub fn name_unsupported(message: &str, schemas: &[Value]) -> Option<String> {
    let list = message.split("Unimplemented keys: [").nth(1)?.split(']').next()?;
    let keyword = list.split('"').nth(1)?;
    let mut place = String::new();
    let mut owner = String::new();
    // Of several, the first that is to be enforced whole.
    for schema in schemas.iter().filter(|s| s.pointer("/x-guidance/lenient") != Some(&Value::Bool(true))) {
        let Some(path) = find(schema, keyword, true, &mut String::new()) else { continue };
        place = format!(" at {}", if path.is_empty() { "/" } else { &path });
        if let Some(tool) = schema.get("$comment").and_then(Value::as_str).and_then(|c| c.strip_prefix("tool ")) {
            owner = format!(" of the tool \"{tool}\"");
        }
        break;
    }
    Some(format!("the keyword \"{keyword}\"{place} of the schema{owner} is not supported"))
}

fn find(value: &Value, keyword: &str, is_schema: bool, path: &mut String) -> Option<String> {
    let descend = |name: &str, member: &Value, schema: bool, path: &mut String| {
        let length = path.len();
        path.push('/');
        path.push_str(&name.replace('~', "~0").replace('/', "~1"));
        let found = find(member, keyword, schema, path);
        path.truncate(length);
        found
    };
    match value {
        Value::Object(members) => {
            if is_schema && members.contains_key(keyword) {
                return Some(path.clone());
            }
            search_members(members, is_schema, |name, member, schema| descend(name, member, schema, path))
        }
        Value::Array(elements) => elements.iter().enumerate().find_map(|(i, e)| descend(&i.to_string(), e, is_schema, path)),
        _ => None,
    }
}

fn search_members(
    members: &Map<String, Value>,
    is_schema: bool,
    mut descend: impl FnMut(&str, &Value, bool) -> Option<String>,
) -> Option<String> {
    members
        .iter()
        .filter(|(name, _)| !is_data(name, is_schema))
        .find_map(|(name, member)| descend(name, member, !(is_schema && holds_names(name))))
}
