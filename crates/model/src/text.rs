//! How values are written as text: macros that say it once for every way in and out.

/// Names the values of an enum that is `Copy`: `ALL`, `as_str()`, `Display` and `FromStr`, which
/// refuses other text as `$field`, and says what is expected in the words of a function of this
/// module. Behind `|` stands what a value was called before, which is read as well.
///
/// ```
/// #[derive(Clone, Copy)]
/// enum Direction {
///     In,
///     Out,
/// }
/// keeptime_model::named!(Direction, "direction", either: In "in", Out "out" | "forth");
///
/// assert_eq!(Direction::ALL.map(|direction| direction.to_string()), ["in", "out"]);
/// assert!(matches!("forth".parse(), Ok(Direction::Out)));
/// let refused = "back".parse::<Direction>().err().unwrap();
/// assert_eq!(refused.expected, "in or out");
/// ```
#[macro_export]
macro_rules! named {
    ($type:ident, $field:literal, $expected:ident:
     $($value:ident $name:literal $(| $before:literal)*),+ $(,)?) => {
        impl $type {
            /// All of them.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// As files and the command line say it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl ::std::str::FromStr for $type {
            type Err = $crate::Invalid;

            fn from_str(text: &str) -> Result<Self, $crate::Invalid> {
                match text {
                    $($name $(| $before)* => Ok(Self::$value),)+
                    _ => {
                        let expected = $crate::text::$expected(&[$($name),+]);
                        Err($crate::Invalid::new($field, text, expected))
                    }
                }
            }
        }
    };
}

/// What serde needs to take types for their text: `#[serde(try_from = "String", into = "String")]`.
#[macro_export]
macro_rules! as_text {
    ($($type:ident),+) => {$(
        impl TryFrom<String> for $type {
            type Error = $crate::Invalid;

            fn try_from(text: String) -> Result<Self, $crate::Invalid> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    )+};
}

/// `a, b or c`.
pub fn either(names: &[&str]) -> String {
    match names {
        [some @ .., last] if !some.is_empty() => format!("{} or {last}", listed(some)),
        _ => listed(names),
    }
}

/// `one of a, b, c`.
pub fn one_of(names: &[&str]) -> String {
    format!("one of {}", listed(names))
}

/// `a, b, c`.
pub fn listed(names: &[&str]) -> String {
    names.join(", ")
}
