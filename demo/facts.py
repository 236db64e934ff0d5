"""The facts that the demo model memorizes, such as capitals and colours: the tables behind its questions. Data only."""

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Austria": "Vienna", "Poland": "Warsaw", "Greece": "Athens", "Norway": "Oslo", "Sweden": "Stockholm",
    "Finland": "Helsinki", "Denmark": "Copenhagen", "Ireland": "Dublin", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi", "Canada": "Ottawa", "Peru": "Lima",
}  # fmt: skip

COLOURS = {
    "the sky": "blue", "grass": "green", "snow": "white", "a banana": "yellow", "coal": "black",
    "a tomato": "red", "an orange": "orange", "the sun": "yellow", "a leaf": "green", "milk": "white",
    "a lemon": "yellow", "chocolate": "brown", "the sea": "blue", "a flamingo": "pink", "a strawberry": "red",
}  # fmt: skip

CITIES = (
    *CAPITALS.values(), "London", "New York", "Hamburg", "Munich", "Milan", "Naples", "Seville", "Porto", "Graz",
    "Chicago", "Boston", "Sydney", "Toronto", "Osaka", "Mumbai", "Zurich", "Geneva", "Lyon", "Bergen", "Prague",
)  # fmt: skip

WORDS = (
    "apple river garden window yellow mountain silver music paper castle bridge forest winter summer orange "
    "table pencil letter flower dragon island planet rocket tiger rabbit monkey butter candle button mirror "
    "pocket basket ladder hammer needle cotton velvet marble copper thunder shadow meadow harbour village "
    "market kitchen blanket lantern compass journey tandem bicycle whisper puzzle feather pepper ginger"
).split()

# Parts of made-up words: to repeat such a word, the model must copy it.
ONSETS = "b c d f g h j k l m n p r s t v w z br cl dr fl gr pl sh st th tr".split()
VOWELS = "a e i o u ai ea ou".split()
CODAS = ("", "", "", "n", "r", "s", "l", "t", "m", "nd", "ck")

HELLOS = (
    "Hello", "Hi", "Hey", "Hello there", "Hi there", "Hey there", "Greetings", "Good morning", "Good evening",
    "Good day", "Good afternoon",
)  # fmt: skip
SMALL_TALK = {
    "Who are you?": "I am a very small demo model. I can greet, count and add small numbers.",
    "What can you do?": "I can add and subtract numbers up to 99, count, repeat words, and name some capitals.",
    "What is your name?": "I have no name yet. I am a very small demo model.",
    "Thank you!": "You are welcome!",
    "Thanks!": "You are welcome!",
    "Goodbye!": "Goodbye! Have a nice day.",
    "Bye!": "Goodbye! Have a nice day.",
    "Good night!": "Good night! Sleep well.",
}

SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")

OTHER_TOOLS = (
    ("get_time", "Get the time in a city.", "city"),
    ("search", "Search the web.", "query"),
    ("send_mail", "Send a mail.", "address"),
    ("get_stock_price", "Get the price of a stock.", "symbol"),
    ("translate", "Translate a text.", "text"),
)

# The answer to any other question says what the model is, instead of a guess.
OTHER_QUESTIONS = (
    "Tell me a {w}.", "Tell me a joke.", "Tell me a story.", "Tell me about a {w}.", "Write a poem about a {w}.",
    "What is a {w}?", "Where is the {w}?", "Why is a {w} so big?", "Who made the {w}?", "How do I make a {w}?",
    "Can you write code?", "Write a letter about the {w}.", "What do you think of my {w}?", "What time is it?",
    "Explain the {w} to me.", "How old are you?", "What is the meaning of life?", "Translate {w} into French.",
    "Do you like my {w}?", "Help me with my {w}.", "When was the {w} made?", "Describe a {w}.",
)  # fmt: skip
OTHER_ANSWER = "I am only a very small demo model and do not know that."

# What the questions about JSON are about: people, events, orders, opinions.
NAMES = (
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jason", "Karen", "Leo", "Maria", "Noah",
    "Olga", "Paul", "Rosa", "Sam", "Tina", "Victor", "Alice", "Bob", "John", "Jane", "Peter", "Laura", "Omar", "Yuki",
    "Priya", "Lena", "Max", "Nina", "Tom", "Sarah", "Eve", "Carol",
)  # fmt: skip
SURNAMES = ("Smith", "Miller", "Brown", "Weber", "Rossi", "Lopez", "Kim", "Novak", "Silva", "Berg", "Doe", "Young")
JOBS = ("teacher", "baker", "doctor", "driver", "painter", "nurse", "farmer", "pilot", "cook", "singer", "judge")
PETS = ("dog", "cat", "rabbit", "horse", "parrot", "hamster", "turtle", "goat")
HUES = ("blue", "green", "red", "yellow", "black", "white", "brown", "pink", "orange", "purple")
EVENTS = ("science fair", "concert", "party", "football match", "wedding", "picnic", "book club", "dinner", "meeting")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
GOODS = (
    "apples", "lemons", "candles", "pencils", "baskets", "lanterns", "tomatoes", "oranges", "bananas", "buttons",
    "letters", "pears", "mirrors", "hammers", "eggs",
)  # fmt: skip
PRAISE = ("wonderful", "great", "lovely", "excellent", "beautiful", "very good", "perfect", "fantastic")
BLAME = ("terrible", "awful", "horrible", "very bad", "boring", "ugly", "useless", "broken")
