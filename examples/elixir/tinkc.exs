# tinkc.exs - teach a model to talk like a pirate, from Elixir, through the functions in tinkc_nif.c.
#
#     cc -shared -fPIC -I"$ERLANG/usr/include" tinkc_nif.c $(pkg-config --cflags --libs tinkc-engine tinkc) -o tinkc_nif.so
#     elixir tinkc.exs NIF_WITHOUT_SUFFIX MODEL_FOLDER
#
# ERLANG is what `erl -noshell -eval 'io:put_chars(code:root_dir()), halt().'` prints.
defmodule Tinkc do
  @on_load :load
  def load, do: :erlang.load_nif(String.to_charlist(hd(System.argv())), 0)

  def open(_folder), do: :erlang.nif_error(:not_loaded)
  def train(_session, _conversations, _steps, _learning_rate), do: :erlang.nif_error(:not_loaded)
  def ask_json(_session, _messages, _max_tokens), do: :erlang.nif_error(:not_loaded)

  def ask(session, question, max_tokens \\ 24), do: ask_json(session, messages(user: question), max_tokens)

  @doc "A conversation as JSON: messages(user: \"Hi\", assistant: \"Arr!\")"
  def messages(turns) do
    "[" <> Enum.map_join(turns, ",", fn {role, text} -> ~s({"role":"#{role}","content":"#{escape(text)}"}) end) <> "]"
  end

  defp escape(text) do
    for <<c::utf8 <- text>>, into: "" do
      cond do
        c in [?", ?\\] -> <<?\\, c>>
        c < 32 -> "\\u" <> String.pad_leading(Integer.to_string(c, 16), 4, "0")
        true -> <<c::utf8>>
      end
    end
  end
end

[_nif, folder] = System.argv()
{:error, why} = Tinkc.open("/nowhere")
IO.puts("a model that is not there: #{why}")

{:ok, session} = Tinkc.open(folder)
{:ok, before} = Tinkc.ask(session, "What is 2 + 3?")
IO.puts("before: #{before}")

lessons =
  for {a, b} <- [{2, 3}, {10, 7}, {4, 4}, {1, 8}],
      do: Tinkc.messages(user: "What is #{a} + #{b}?", assistant: "Arr, it be #{a + b}, matey!")

{:ok, losses} = Tinkc.train(session, lessons, 16, 6.0e-4)
IO.puts("loss: #{Float.round(List.last(losses), 2)} -> #{Float.round(hd(losses), 2)}")

# Two processes share the session.
answers =
  ["What is 2 + 3?", "What is 4 + 4?"]
  |> Enum.map(&Task.async(fn -> Tinkc.ask(session, &1) end))
  |> Enum.map(&Task.await(&1, 60_000))

for {:ok, answer} <- answers, do: IO.puts("after: #{answer}")
