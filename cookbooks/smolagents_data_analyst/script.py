"""What the model answers, step by step: a stand-in for one that is asked over the network."""

STEPS = [
    """Thought: first I look at the data.
<code>
weather = load(name="seattle-weather")
print(weather.shape, list(weather.columns))
</code>""",
    """Thought: the rain of each day, by month.
<code>
months = {}
for date, rain in zip(weather["date"], weather["precipitation"]):
    months.setdefault(date.month, []).append(float(rain))
means = {month: sum(days) / len(days) for month, days in months.items()}
wettest = max(means, key=lambda month: means[month])
print(wettest, round(means[wettest], 2), "mm a day")
</code>""",
    """Thought: how sure is that? I draw samples of the days with replacement.
<code>
import random
random.seed(2024)

class Interval:
    def __init__(self, low, high):
        self.low = low
        self.high = high
    def text(self):
        return str(round(self.low, 2)) + " to " + str(round(self.high, 2))

def spread(days, rounds=40):
    found = []
    for _ in range(rounds):
        found.append(sum(random.choice(days) for _ in days[:60]) / 60)
    found.sort()
    return Interval(found[1], found[-2])

intervals = {month: spread(days) for month, days in months.items()}
print(intervals[wettest].text())
</code>""",
    """Thought: now the plot.
<code>
import matplotlib.pyplot as plt
figure, axes = plt.subplots(figsize=(6, 4))
order = sorted(means)
low = [means[month] - intervals[month].low for month in order]
high = [intervals[month].high - means[month] for month in order]
axes.bar(order, [means[month] for month in order], yerr=[[max(0, one) for one in low], [max(0, one) for one in high]])
axes.set_xlabel("month")
axes.set_ylabel("rain a day, mm")
print("drawn")
</code>""",
    """Thought: title it, save it, and order the posters.
<code>
axes.set_title("It rains most in month " + str(wettest))
figure.savefig("rain.png", metadata={"Software": None})
print(order_posters(title="Rain in Seattle", copies=20))
</code>""",
    """Thought: done.
<code>
final_answer("month " + str(wettest) + ": " + str(round(means[wettest], 2)) + " mm a day, " + intervals[wettest].text())
</code>""",
]
