//! Configurations of core's and the zoo's algorithms: texts, choices, refusals.

mod compatible;
mod declared;
mod parts;
mod run;
mod texts;
