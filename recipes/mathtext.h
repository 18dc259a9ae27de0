/* mathtext.h - numbers and formulas in the text of an answer. */
#ifndef TKR_MATHTEXT_H
#define TKR_MATHTEXT_H

#include "base/buf.h"

/* The last number in a text ("1,234.5", "-3e4"); false = there is none. */
bool tkr_last_number(const char *text, double *out);
/* The grade that a model was asked for: the one number from 0 to 10 in the last line of its answer.
 * "7/10" and "7 out of 10" are 7. False = there is none, it is out of range, or there are several. */
bool tkr_read_grade(const char *text, double *out);
/* Whether two numbers are the same answer: to 1e-6, relative or absolute. */
bool tkr_same_number(double a, double b);
/* What the last \boxed{...} holds; data NULL = there is none, or it is not closed. */
tinkc_str tkr_last_boxed(const char *text);
/* Whether two formulas say the same: equal as numbers (also a/b, \frac{a}{b}, 50\%), or equal once
 * spaces, dollars, \left, \right, \text{} and the like are gone. */
bool tkr_same_formula(tinkc_str a, tinkc_str b, tinkc_error *err);

#endif
